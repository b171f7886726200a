//! Tests of the index: its size and selectivity by counting, its behaviour against a model, its bounds by force.
mod bounds;
mod model;
mod sizes;
