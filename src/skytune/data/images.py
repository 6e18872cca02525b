"""Images: where they lie, whether they can be read, and their bytes, as their files have them, as a column of Arrow."""

import base64
import functools
import io
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..common.text import first_line
from ..config import ConfigError, DataConfig, DataSource, UserError
from .columns import Column, Columns
from .rows import Rows
from .splits import KEYS, key_of

IMAGE = "image"
"""Role of the column (`Rows.more`), and the column of bytes in a split."""

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
"""Names of image files; what they are is seen in their content."""

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""What Pillow is to read: none of the formats for which it starts other programs."""

SPLITS = {"train": ("train", "training"), "validation": ("validation", "val", "valid", "dev"), "test": ("test",)}
"""Names of the folders of splits."""

FOREIGN = {
    rb"(?s)\s*(<\?xml.*?>\s*)?(<!--.*?-->\s*)?(<!doctype svg.*?>\s*)?<svg": "is an SVG drawing: render it as PNG",
    rb"\s*<": "is a web page, not an image",
    rb"version https://git-lfs": "is a pointer of Git LFS, not the file: `git lfs pull` fetches it",
    rb"%PDF|%!PS": "is a PDF or PostScript document, not an image",
    rb"(?s)....ftyp(hei|mif|avi)": "is HEIC or AVIF, which is not read here: save it as JPEG or PNG",
}
"""What is called an image and is none, by how it begins."""

AT_ONCE = 256
"""Images that are in memory at once."""

KIND = pa.struct([("bytes", pa.large_binary()), ("path", pa.large_string())])
"""An image on its way: its bytes, or the file where they lie."""


def image_column(config: DataConfig) -> Column:
    """Return the column of images."""
    return Column(IMAGE, config.image or IMAGE, "data.image", kind="values")


def holds_images(kind: pa.DataType) -> bool:
    """Whether a column of this type holds images, as bytes or as `datasets.Image`."""
    if pa.types.is_struct(kind):
        return {field.name for field in kind} >= {"bytes", "path"}
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def is_image(path: str) -> bool:
    """Whether a file is called as images are, and not hidden."""
    return path.lower().endswith(ENDINGS) and not os.path.basename(path).startswith(".")


def split_folder(root: str, name: str) -> str | None:
    """Return the folder of a split (`train`, `validation`, `test`) in a folder that holds nothing but such; None where
    there is none."""
    folder = Path(root).expanduser()
    inside = {f.name for f in folder.iterdir() if f.is_dir() and f.name[0] != "."} if folder.is_dir() else set[str]()
    known = {alias for aliases in SPLITS.values() for alias in aliases}
    if not inside & {*SPLITS["train"]} or not inside <= known:  # a class may be called train, too
        return None
    return next((str(folder / alias) for alias in SPLITS.get(name, ()) if alias in inside), None)


def root_of(spec: str) -> str:
    """Return the folder that images are asked for from: of a file its own, of a glob the one before its first mark."""
    fixed = re.split(r"[*?\[]", spec, maxsplit=1)[0]
    place = Path(spec if fixed == spec else os.path.dirname(fixed)).expanduser().absolute()
    return str(place.parent if place.is_file() else place)


def image_rows(files: list[str], spec: str, name: str, columns: Columns) -> Rows:
    """Return the rows of image files, of which each has the first folder on the way to it as its class.

    Args:
        spec: the folder or glob by which they were found.
        name: what messages call them.
        columns: what the task reads.

    Raises:
        UserError: the task reads no images.
    """
    if not any(column.role == IMAGE for column in columns):
        raise UserError(f"{spec}: holds images: task=image-classification learns from them")
    root = root_of(spec)
    parts = [Path(os.path.relpath(file, root)).parts for file in files]
    rows = Rows(name=name, parts=[(spec, len(files))], columns=[IMAGE], number=np.arange(len(files)))
    rows.more[IMAGE] = pa.chunked_array([pa.array([{"path": file} for file in files], KIND)])
    classes = [part[0] if len(part) > 1 else None for part in parts]
    if any(classes) and any(column.role == "label" for column in columns):
        rows.names = sorted({found for found in classes if found is not None})
        rows.label = pa.chunked_array([pa.array(classes, pa.large_string()).dictionary_encode()])
        rows.odd = {n: f"{files[n]} lies in no folder of a class" for n, found in enumerate(classes) if found is None}
    return rows


def arrange(rows: Rows, config: DataConfig) -> Rows:
    """Return rows whose images were looked at: what cannot be read stands in `Rows.odd`. The names of their files are
    their texts; equal content has equal keys; the images are `Rows.other`, of which nothing is copied.

    Raises:
        ConfigError: the column holds neither images nor paths.
    """
    import datasets

    column, looked = look_at(rows, config, problem_of)
    places, chunks, start = [path for path, _, _ in looked], list[Any](), 0
    for chunk in column.chunks:
        paths = pa.array(places[start : start + len(chunk)], pa.large_string())
        start += len(chunk)
        chunks.append(pa.StructArray.from_arrays([pc.struct_field(chunk, "bytes"), paths], fields=list(KIND)))
    roots = _roots(rows, config)

    def shown(row: int) -> str:
        path = places[row]
        return (os.path.relpath(path, roots(row) or "/") if os.path.isabs(path) else path) or f"image {row + 1}"

    texts = pa.array(map(shown, range(len(places))), pa.large_string())
    keys = pa.array([key for _, key, _ in looked], pa.uint64())
    return replace(
        rows,
        text=pa.chunked_array([texts]),
        other=datasets.Dataset(pa.table({IMAGE: pa.chunked_array(chunks, KIND)})),
        more={KEYS: pa.chunked_array([keys])},
        odd={**{row: problem for row, (_, _, problem) in enumerate(looked) if problem}, **rows.odd},
    )


def look_at(rows: Rows, config: DataConfig, check: Callable[[bytes], str]) -> tuple[Any, list[tuple[str, int, str]]]:
    """Return the column of images as one of `KIND`, and where each lies, the key of its content, and what is wrong with
    it: `check` says that of the content."""
    column, roots = _as_structs(rows, config), _roots(rows, config)

    def look(row: int) -> tuple[str, int, str]:
        value = column[row].as_py() or {"bytes": None, "path": None}
        data, path, problem = value["bytes"], value["path"] or "", ""
        if data is None and path:
            path, problem = _resolved(roots(row), path)
            try:
                data = b"" if problem else Path(path).read_bytes()
            except OSError as error:
                data, problem = b"", f"cannot be read: {error.strerror or error}"
        if data is None:
            return path, 0, "the image is missing"
        problem = problem or check(data)
        return path, key_of(data), f"{path or 'the image'} {problem}" if problem else ""

    return column, list(in_threads(look, len(column)))


def _as_structs(rows: Rows, config: DataConfig) -> Any:
    """Return the column of images as one of `KIND`."""
    kind, name = rows.more[IMAGE].type, config.image or IMAGE
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    texts = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind)
    if texts and config.image is None:
        raise ConfigError(f"{rows.name}: column 'image' holds texts; data.image=image takes them for paths")
    if not texts and not holds_images(kind):
        raise ConfigError(f"data.image={name}: holds {kind} in {rows.name}, neither images nor paths")

    def as_struct(chunk: Any) -> Any:
        fields = {field.name: pa.nulls(len(chunk), field.type) for field in KIND}
        if pa.types.is_struct(kind):
            fields = {part: pc.struct_field(chunk, part) for part in fields}
        else:
            fields["path" if texts else "bytes"] = chunk.cast(kind)
        return pa.StructArray.from_arrays([fields[f.name].cast(f.type) for f in KIND], fields=list(KIND))

    return pa.chunked_array([as_struct(chunk) for chunk in rows.more[IMAGE].chunks], KIND)


def _roots(rows: Rows, config: DataConfig) -> Callable[[int], str | None]:
    """Return what gives the folder in which the image of a row must lie; None where code has given its path."""
    if config.image_folder is not None:
        return lambda row: str(Path(str(config.image_folder)).expanduser().absolute())
    if config.source in (DataSource.hub, DataSource.target):
        return lambda row: None
    ends = np.cumsum([count for _, count in rows.parts])
    places = [root_of(part) for part, _ in rows.parts]
    number = np.arange(len(rows)) if rows.number is None else rows.number
    return lambda row: places[int(np.searchsorted(ends, number[row], side="right"))]


def _resolved(root: str | None, path: str) -> tuple[str, str]:
    """Return where an image lies, and what is wrong with that."""
    place = Path(root or "", path)
    try:
        if root is not None and not place.resolve().is_relative_to(Path(root).resolve()):
            return path, f"leads out of {root}, where all images must lie (data.image_folder=FOLDER says where)"
        return str(place), "" if place.is_file() else f"is not there (looked for in {root or 'this folder'})"
    except (OSError, ValueError) as error:
        return path, f"cannot be looked for: {first_line(error)}"


def in_threads(function: Callable[[int], Any], count: int) -> Iterator[Any]:
    """Yield a function's values of 0, 1, ... `count` - 1, computed on all cores: Pillow lets other threads work."""
    with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="images") as pool:
        for start in range(0, count, AT_ONCE):
            yield from pool.map(function, range(start, min(start + AT_ONCE, count)))


ORIENTATION = 0x0112
"""EXIF's number of how a camera was held: with 5 to 8 width and height change places."""

Box = tuple[float, float, float, float]


@functools.cache
def _pillow() -> Any:
    from PIL import Image

    Image.init()  # else it knows five formats
    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # `problem_of` refuses such images
    return Image


def problem_of(data: bytes) -> str:
    """Return what is wrong with the content of an image's file, as the end of a sentence; empty if nothing is."""
    if not data:
        return "is empty (0 bytes)"
    if what := next((what for start, what in FOREIGN.items() if re.match(start, data[:2000], re.IGNORECASE)), None):
        return what
    Image = _pillow()
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if image.width * image.height > Image.MAX_IMAGE_PIXELS:  # more than any photograph has: fills the memory
                raise Image.DecompressionBombError
            image.draft("RGB", (1, 1))  # all of a JPEG is read, but only its coarsest picture computed
            image.load()
            return "has pixels of 32 bits: save it with 8 or 16" if image.mode in ("F", "I") else ""
    except Image.DecompressionBombError:
        return f"has more than {Image.MAX_IMAGE_PIXELS:,} pixels: make it smaller"
    except Exception as error:  # whatever a decoder makes of it
        known = ", ".join(FORMATS)
        what = f"is none of {known}" if "cannot identify" in str(error) else first_line(error)
        return f"cannot be read as an image: {what}"


def decode(data: Any, look: Callable[[Any], None] = lambda image: None) -> Any:
    """Return an image's content as Pillow's image, turned as its EXIF says, in RGB. Raises what Pillow raises.

    Args:
        look: is given the image before its pixels are read.
    """
    from PIL import ImageOps

    with _pillow().open(io.BytesIO(data), formats=FORMATS) as image:
        look(image)
        ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith("I;16"):  # Pillow would cut them off at 255
        image = _pillow().fromarray((np.asarray(image) // 257).astype(np.uint8))
    return image if image.mode == "RGB" else image.convert("RGB")


def decode_part(data: Any, choose: Callable[[tuple[int, int]], Box], width: int, height: int) -> tuple[Any, Box]:
    """Return an image as `decode` does, and the corners of a part of it that will be shrunk to a size. Where the part
    has twice, four or eight times as many pixels on both sides, a JPEG's pixels are not all computed: only means of as
    many on each side (libjpeg's scaled decoding).

    Args:
        choose: returns the part's corners (left, upper, right, lower) in an image of that width and height.
    """
    seen: list[Any] = []

    def look(image: Any) -> None:
        before, held = image.size, image.getexif().get(ORIENTATION, 1)
        size = before[::-1] if held in (5, 6, 7, 8) else before  # files hold other numbers, and text, too
        box = choose(size)
        spare = max(1, min(int(box[2] - box[0]) // width, int(box[3] - box[1]) // height))
        drafted = image.draft("RGB", (before[0] // spare, before[1] // spare))
        seen.extend([box, size, held, drafted[1][2] / before[0] if drafted else 1.0])

    image = decode(data, look)
    (left, upper, right, lower), size, held, share = seen
    # What its last row and column have too much, as sizes are rounded up, lies first where they are turned.
    x = image.width - size[0] * share if held in (2, 3, 6, 7) else 0.0
    y = image.height - size[1] * share if held in (3, 4, 7, 8) else 0.0
    end = min(x + right * share, image.width), min(y + lower * share, image.height)
    return image, (x + left * share, y + upper * share, *end)


def image_inputs(rows: Rows, processor: Any, limit: int | None) -> tuple[pa.Table, dict[str, Any], int]:
    """Return the bytes of images as a table with its features; see `targets.inputs`. They lie in a file that is mapped,
    not in memory.

    Raises:
        UserError: no room for them; an image that has gone.
    """
    import datasets

    schema, images = pa.schema([(IMAGE, pa.large_binary())]), rows.other.with_format("arrow")

    def content(value: dict[str, Any]) -> bytes:
        return Path(value["path"]).read_bytes() if value["bytes"] is None else value["bytes"]

    try:
        with tempfile.NamedTemporaryFile(prefix="skytune-images-", suffix=".arrow") as file:
            with pa.ipc.new_stream(file, schema) as out:
                for start in range(0, len(rows), AT_ONCE):
                    some = images[start : start + AT_ONCE][IMAGE].to_pylist()
                    found = [content(value) for value in some]
                    out.write_batch(pa.record_batch([pa.array(found, pa.large_binary())], schema=schema))
            file.flush()
            table = pa.ipc.open_stream(pa.memory_map(file.name)).read_all()
    except OSError as error:
        raise UserError(
            f"cannot copy the images of {rows.name} to {tempfile.gettempdir()} (TMPDIR): {error}"
        ) from error
    return table, {IMAGE: datasets.Value("large_binary")}, 0


def png(pixels: np.ndarray) -> bytes:
    """Return pixels (uint8 [height, width]) as a file's content."""
    into = io.BytesIO()
    _pillow().fromarray(pixels).save(into, "PNG", compress_level=1)
    return into.getvalue()


def thumbnail(data: bytes, pixels: int = 112) -> str:
    """Return an image, with sides of `pixels` at most, as an address that holds it (`data:image/...`)."""
    image, into = decode(data), io.BytesIO()
    image.thumbnail((pixels, pixels))
    image.save(into, "JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(into.getvalue()).decode()}"
