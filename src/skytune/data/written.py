"""Shards of predictions as files, in the format of the whole; and the whole, of shards put behind each other."""

import csv
import io
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from ..common.files import replacing
from ..config import UserError
from .stream import Shard


def write_shard(path: Path, shard: Shard, new: Mapping[str, list[Any]], kind: str) -> None:
    """Write the rows of a shard with new columns, whole or not at all; the first shard has the header.

    Args:
        kind: `csv`, `tsv`, `jsonl` or `parquet`.

    Raises:
        UserError: a value that this kind of file cannot hold.
    """
    with replacing(path, str(os.getpid()), flush=True) as part:
        if kind == "parquet":
            table = shard.values if isinstance(shard.values, pa.Table) else _table(shard)
            for name, values in new.items():
                table = table.append_column(name, pa.array(values))
            pa.parquet.write_table(table, part)
        else:
            text = _lines(shard, new) if kind == "jsonl" else _cells(shard, new, kind)
            part.write_bytes(text.encode())


def join_shards(parts: Sequence[Path], target: Path, kind: str) -> None:
    """Write one file of all shards, in their order.

    Raises:
        UserError: columns of Parquet shards that do not fit together.
    """
    with target.open("wb") as out:
        if kind != "parquet":
            for part in parts:
                with part.open("rb") as file:
                    shutil.copyfileobj(file, out, 2**20)
        else:
            try:
                schema = pa.unify_schemas(
                    [pa.parquet.read_schema(part) for part in parts], promote_options="permissive"
                )
            except pa.ArrowException as error:
                raise UserError(
                    f"predict.output: a column has several types ({error}); .jsonl can hold them"
                ) from error
            with pa.parquet.ParquetWriter(out, schema) as writer:
                for part in parts:
                    writer.write_table(pa.parquet.read_table(part).cast(schema))
        out.flush()
        os.fsync(out.fileno())


def _lines(shard: Shard, new: Mapping[str, list[Any]]) -> str:
    records = shard.values if isinstance(shard.values, list) else shard.values.to_pylist()
    added = zip(*new.values(), strict=True)
    found = ({**record, **dict(zip(new, values, strict=True))} for record, values in zip(records, added, strict=True))
    return "".join(json.dumps(record, ensure_ascii=False, default=str) + "\n" for record in found)


def _cells(shard: Shard, new: Mapping[str, list[Any]], kind: str) -> str:
    out = io.StringIO()
    style: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "quotechar": None} if kind == "tsv" else {}
    writer = csv.writer(out, lineterminator="\n", **style)
    if shard.number == 0:
        writer.writerow([*shard.header, *new])
    for at, (row, added) in enumerate(zip(_plain(shard), zip(*new.values(), strict=True), strict=True)):
        try:
            writer.writerow(map(_cell, (*row, *added)))
        except csv.Error as error:
            what = "a tab or a line break in a cell, which .tsv cannot hold"
            raise UserError(f"{shard.rows.where(at)}: {what}; predict.output=FILE.csv can") from error
    return out.getvalue()


def _plain(shard: Shard) -> Iterable[Sequence[Any]]:
    """Return the values of every row in the order of the header."""
    if isinstance(shard.values, pa.Table):
        return zip(*(column.to_pylist() for column in shard.values.columns), strict=True)
    known = set(shard.header)
    for at, record in enumerate(shard.values):
        for name in record.keys() - known:
            where = shard.rows.where(at)
            raise UserError(f"{where}: has '{name}', which the first rows lack; predict.output=FILE.jsonl can hold it")
    return ([record.get(name) for name in shard.header] for record in shard.values)


def _cell(value: Any) -> str:
    """Return a value as a csv file has it."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, dict | list) else str(value)


def _table(shard: Shard) -> pa.Table:
    columns = {}
    for name in dict.fromkeys([*shard.header, *(key for record in shard.values for key in record)]):
        values = [record.get(name) for record in shard.values]
        try:
            columns[name] = pa.array(values)
        except (pa.ArrowException, OverflowError):  # several types in one column
            columns[name] = pa.array([None if value is None else _cell(value) for value in values])
    return pa.table(columns)
