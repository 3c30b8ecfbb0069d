from __future__ import annotations

import json

import pytest

from runnel.core.errors import ConfigError, DataError
from runnel.data.prompts import is_data, read_rows, read_splits

ROWS = [{"prompt": f"p{i}", "answer": i} for i in range(4)]


def lines(rows):
    return "\n".join(json.dumps(r) for r in rows) + "\n"


def test_json_lines_and_json(tmp_path):
    (tmp_path / "a.jsonl").write_text(lines(ROWS) + "\n")
    (tmp_path / "a.json").write_text(json.dumps(ROWS))
    assert read_rows(tmp_path / "a.jsonl") == read_rows(tmp_path / "a.json") == ROWS
    assert read_splits(tmp_path / "a.jsonl") == (ROWS, [])


def test_parquet_and_saved_data_sets(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    assert read_rows(tmp_path / "a.parquet") == ROWS
    datasets = pytest.importorskip("datasets")
    one = datasets.Dataset.from_list(ROWS)
    one.save_to_disk(str(tmp_path / "one"))
    assert read_splits(tmp_path / "one") == (ROWS, [])
    datasets.DatasetDict({"train": one, "test": one.select([0])}).save_to_disk(str(tmp_path / "two"))
    assert read_splits(tmp_path / "two") == (ROWS, ROWS[:1])


def test_a_folder_of_files(tmp_path):
    (tmp_path / "train.jsonl").write_text(lines(ROWS))
    (tmp_path / "test.json").write_text(json.dumps(ROWS[:1]))
    (tmp_path / "notes.json").write_text("nonsense")
    assert read_splits(tmp_path) == (ROWS, ROWS[:1])
    (tmp_path / "train.jsonl").unlink()
    with pytest.raises(DataError, match=r"no train split \(found: test\)"):
        read_splits(tmp_path)


def test_damage_is_named_by_its_place(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text(lines(ROWS[:2]) + '{"prompt": "cut of')
    with pytest.raises(DataError, match=r"a\.jsonl, line 3: not JSON"):
        read_rows(file)
    file.write_text(lines(ROWS[:1]) + "[1]\n")
    with pytest.raises(DataError, match=r"line 2: a row is an object with columns, not list"):
        read_rows(file)
    file.write_bytes(b'{"prompt": "\xff\xfe"}\n')
    with pytest.raises(DataError, match="line 1: not JSON"):
        read_rows(file)
    file.write_text("")
    with pytest.raises(DataError, match="has no rows"):
        read_rows(file)
    (tmp_path / "b.json").write_text('{"a": 1}')
    with pytest.raises(DataError, match="a list of rows is expected, not dict"):
        read_rows(tmp_path / "b.json")
    with pytest.raises(ConfigError, match="no such file"):
        read_splits(tmp_path / "none.jsonl")


def test_damaged_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "a.parquet").write_bytes(b"PAR1 cut off")
    with pytest.raises(DataError, match=r"a\.parquet: not a whole Parquet file"):
        read_rows(tmp_path / "a.parquet")


def test_what_is_data(tmp_path):
    assert is_data("x.jsonl")
    assert is_data(str(tmp_path))
    assert not is_data("reverse")
    assert not is_data("mine.py:make_task")
