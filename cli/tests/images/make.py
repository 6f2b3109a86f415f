#!/usr/bin/env python3
"""Makes the images beside this file, which tests read: small JPEGs of every kind that cameras and programs write.

Needs Pillow (`pip install pillow`). Files of another version may have other bytes; the pixels in `cli/src/images/tests.rs` are those
of the committed files.
"""

from pathlib import Path

from PIL import Image

HERE = Path(__file__).resolve().parent
WIDTH, HEIGHT = 37, 26


def colour(x, y):
    """Smooth in one part, a hard edge in another, all colours."""
    if (x - 26) ** 2 + (y - 9) ** 2 < 36:
        return (230, 40, 20)
    return (x * 255 // (WIDTH - 1), y * 255 // (HEIGHT - 1), (x * y) % 97 + 60)


def main():
    image = Image.new("RGB", (WIDTH, HEIGHT))
    image.putdata([colour(x, y) for y in range(HEIGHT) for x in range(WIDTH)])
    grey = image.convert("L")
    save = {
        "grey": (grey, {"quality": 90}),
        "444": (image, {"quality": 90, "subsampling": "4:4:4"}),
        "422": (image, {"quality": 75, "subsampling": "4:2:2"}),
        "420": (image, {"quality": 75, "subsampling": "4:2:0"}),
        "progressive": (image, {"quality": 75, "subsampling": "4:2:0", "progressive": True}),
        "grey-progressive": (grey, {"quality": 60, "progressive": True}),
        "restarts": (image, {"quality": 75, "subsampling": "4:2:0", "restart_marker_rows": 1}),
        "cmyk": (image.convert("CMYK"), {"quality": 50}),
    }
    for name, (picture, options) in save.items():
        picture.save(HERE / f"{name}.jpg", **options)


main()
