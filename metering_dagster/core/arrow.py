"""Arrow as this project's parquet files need it.

Belongs here: columns out of Python values, telling Arrow's errors. Does not: schemas, files.
"""

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def column_of_texts(texts: Sequence[str | None], kind: "pa.DataType") -> "pa.Array":
    """Return the values that these texts mean, as a column of this type; None is a missing one.

    Arrow's own conversion of a list asks pandas whether it is one of its, and so imports it: 0.3 s in every run.
    """
    import pyarrow as pa

    encoded = [None if text is None else text.encode() for text in texts]
    bitmap, offsets, size = bytearray((len(encoded) + 7) // 8), array("i", [0]), 0
    for position, text in enumerate(encoded):
        size += len(text or b"")
        offsets.append(size)
        bitmap[position // 8] |= (text is not None) << (position % 8)
    buffers = (bytes(bitmap), offsets.tobytes(), b"".join(text or b"" for text in encoded))
    return pa.Array.from_buffers(pa.string(), len(encoded), [pa.py_buffer(buffer) for buffer in buffers]).cast(kind)


def is_arrows(error: BaseException | None) -> bool:
    """Return whether Arrow refuses something: a place it does not know, a file that is none."""
    if error is None:
        return False
    import pyarrow as pa

    return isinstance(error, pa.ArrowException)
