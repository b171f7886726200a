//! Owns the crash test: the medium as a loss after every single device operation may leave it, opened and compared.
