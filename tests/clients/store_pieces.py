"""Content that checkpoints and runs store in pieces, read from docs/formats/fawn-ds.md alone."""

import struct

from store_files import Damage, hash64, is_zero, mix, round_up, u32, u64

PIECE_BYTES = 65536
PIECE_HEADER_BYTES = 16


class Content:
    """The contents of all pieces, one after the other."""

    def __init__(self, file, data, pointer_bits=32):
        self.file, self.data, self.pointer_bits, self.at = file, data, pointer_bits, 0

    def take(self, form):
        begin, self.at = self.at, self.at + struct.calcsize("<" + form)
        if self.at > len(self.data):
            raise Damage(self.file, begin, "the content is cut short")
        return struct.unpack_from("<" + form, self.data, begin)

    def count(self):
        return self.take("I")[0]

    def pointer(self):
        low, = self.take("I")
        return low | self.take("B")[0] << 32 if self.pointer_bits == 40 else low

    def columns(self, count):
        """The fragments and the pointers of a cell with this number of entries."""
        fragments, pointers = self.take(f"{count}H"), self.take(f"{count}I")
        if self.pointer_bits == 40:
            pointers = [low | high << 32 for low, high in zip(pointers, self.take(f"{count}B"))]
        return fragments, pointers

    def items(self, form):
        return [self.take(form) for _ in range(self.count())]

    def end(self):
        if self.at != len(self.data):
            raise Damage(self.file, self.at, "the content goes on behind its last part")


def read_pieces(file, data, at, folded):
    """The content of all pieces from `at` of the file up to the end of `data`."""
    contents = []
    while at < len(data):
        piece = data[at : at + PIECE_BYTES]
        length, is_last = u32(piece, 8), at + len(piece) == len(data)
        stop = PIECE_HEADER_BYTES + length
        end = round_up(stop, 4096) if is_last else PIECE_BYTES
        if end != len(piece) or not is_last and stop != PIECE_BYTES:
            raise Damage(file, at, "a piece of another length")
        if u64(piece, 0) != hash64(piece[8:stop]) ^ mix(folded, at):
            raise Damage(file, at, "the checksum of a piece differs")
        if u32(piece, 12) or not is_zero(piece[stop:]):
            raise Damage(file, at, "zeros of a piece are not zero")
        contents.append(piece[PIECE_HEADER_BYTES:stop])
        at += len(piece)
    return b"".join(contents)


def place_in_file(first_at, place):
    """Where a byte of the content is in the file, if the first piece is at `first_at`."""
    pieces, within = divmod(place, PIECE_BYTES - PIECE_HEADER_BYTES)
    return first_at + pieces * PIECE_BYTES + PIECE_HEADER_BYTES + within
