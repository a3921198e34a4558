#!/usr/bin/env python3
"""The digest of a tensor, as a trainer would compute it; writes digest_vectors.json.

digest_reference.py > digest_vectors.json
"""

import json

import numpy as np


def digest(rows: np.ndarray) -> tuple[int, int]:
    """rows: [R, row_bytes] uint8, the whole tensor row-major. Returns (lane0, lane1)."""
    padding = -rows.shape[1] % 8
    words = np.pad(rows, ((0, 0), (0, padding))).reshape(-1).view("<u8")
    with np.errstate(over="ignore"):
        i = np.arange(1, words.size + 1, dtype=np.uint64)
        z = words + i * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        h = z ^ (z >> np.uint64(31))
        lane1 = (h >> np.uint64(32)) * (h & np.uint64(0xFFFFFFFF))
        return int(h.sum(dtype=np.uint64)), int(lane1.sum(dtype=np.uint64))


def pattern(size: int) -> np.ndarray:
    """Bytes that any language can make: byte i is (i * 131 + i // 251 + 7) mod 256."""
    i = np.arange(size, dtype=np.uint64)
    return ((i * 131 + i // 251 + 7) % 256).astype(np.uint8)


def main() -> None:
    vectors = []
    for name, data in (("zero", lambda size: np.zeros(size, np.uint8)), ("pattern", pattern)):
        for rows, row_bytes in ((1, 8), (1, 1), (3, 2), (1, 7), (2, 9), (5, 16), (7, 1000), (64, 254), (33, 4096)):
            lanes = digest(data(rows * row_bytes).reshape(rows, row_bytes))
            vectors.append(
                {
                    "data": name,
                    "rows": rows,
                    "row_bytes": row_bytes,
                    "lane0": f"{lanes[0]:016x}",
                    "lane1": f"{lanes[1]:016x}",
                }
            )
    print("[\n  " + ",\n  ".join(json.dumps(vector) for vector in vectors) + "\n]")


if __name__ == "__main__":
    main()
