"""Make the embedded data set from the 10 000 test images of Fashion-MNIST in Debian's package dataset-fashion-mnist.

python tools/make_fashion10k.py [directory of the gzipped idx files]
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import numpy as np

from pfl_lightning.data.mirrors import FASHION_DEBIAN, IDX_FILES, parse_idx

TARGET = Path(__file__).parents[1] / "pfl_lightning" / "data" / "files" / "fashion10k.npz"


def main() -> None:
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else FASHION_DEBIAN
    images, labels = (
        parse_idx(gzip.decompress((source / f"{name}.gz").read_bytes())).numpy() for name in IDX_FILES[2:]
    )
    np.savez_compressed(TARGET, images=images, labels=labels)
    pixels = images / 255
    print(
        f"{TARGET}: {TARGET.stat().st_size / 1e6:.2f} MB, {len(images)} images, labels {np.bincount(labels).tolist()}"
    )
    print(f"mean {pixels.mean():.4f} std {pixels.std():.4f}")


if __name__ == "__main__":
    main()
