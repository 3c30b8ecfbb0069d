from __future__ import annotations

import json

import pytest

from runnel.core.errors import ConfigError, DataError
from runnel.data.rows import read_rows
from runnel.llm.tasks.prompts import is_data, read_splits

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


def test_all_shards_are_read_in_order_and_a_test_set_is_left_alone(tmp_path):
    rows = [{"prompt": f"p{i}", "answer": i} for i in range(300)]
    for i in range(3):
        (tmp_path / f"train-{i:05d}-of-00003.jsonl").write_text(lines(rows[100 * i : 100 * i + 100]))
    (tmp_path / "test.jsonl").write_text(lines(ROWS[:1]))
    assert read_splits(tmp_path) == (rows, ROWS[:1])
    (tmp_path / "validation-00000-of-00001.jsonl").write_text(lines(ROWS[1:3]))
    assert read_splits(tmp_path) == (rows, ROWS[1:3])
    assert read_splits(tmp_path)[0][250].place.endswith("train-00002-of-00003.jsonl, line 51")
    (tmp_path / "train-00001-of-00003.jsonl").unlink()
    with pytest.raises(DataError, match="2 of 3 shards of 'train' are there"):
        read_splits(tmp_path)


@pytest.mark.parametrize("place", ["", "data", "train", "data/train"])
def test_folders_as_hugging_face_lays_them_out(tmp_path, place):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    for i in (0, 2, 10):
        name = f"{i}.parquet" if place.endswith("train") else f"train-{i}.parquet"
        parquet.write_table(pa.Table.from_pylist([{"prompt": str(i)}]), tmp_path / place / name)
    assert read_splits(tmp_path) == ([{"prompt": "0"}, {"prompt": "2"}, {"prompt": "10"}], [])


def test_parts_that_are_no_whole(tmp_path):
    (tmp_path / "train-0.jsonl").write_text(lines(ROWS))
    (tmp_path / "train-1.jsonl").write_text(lines([{"prompt": "a", "level": 1}]))
    with pytest.raises(DataError, match=r"train-1.jsonl has the columns prompt, level, and .* add or remove answer, level"):
        read_splits(tmp_path)
    (tmp_path / "train-1.jsonl").rename(tmp_path / "train.jsonl")
    with pytest.raises(DataError, match="a whole 'train' stands beside parts of one"):
        read_splits(tmp_path)
    (tmp_path / "train.jsonl").rename(tmp_path / "train.json")
    with pytest.raises(DataError, match=r"'train' is there more than once \(train-0.jsonl, train.json\)"):
        read_splits(tmp_path)
    for name in ("main", "hard"):
        (tmp_path / "sets" / name).mkdir(parents=True)
        (tmp_path / "sets" / name / "train-0.jsonl").write_text(lines(ROWS))
    with pytest.raises(DataError, match="give one of its folders: hard, main"):
        read_splits(tmp_path / "sets")


def test_only_a_line_feed_ends_a_row(tmp_path):
    rows = [{"prompt": "a\u2028b\u2029c\u0085d\x0be"}, {"prompt": "f"}]
    text = "\r\n".join(json.dumps(r, ensure_ascii=False) for r in rows)
    (tmp_path / "a.jsonl").write_text("\ufeff" + text, encoding="utf-8", newline="")
    assert read_rows(tmp_path / "a.jsonl") == rows


def test_damage_is_named_by_its_place(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text(lines(ROWS[:2]) + '{"prompt": "cut of')
    with pytest.raises(DataError, match=r"a\.jsonl, line 3: not JSON"):
        read_rows(file)
    file.write_text(lines(ROWS[:1]) + "[1]\n")
    with pytest.raises(DataError, match=r"line 2: a row is an object with columns, not list"):
        read_rows(file)
    file.write_bytes(b'{"prompt": "\xff\xfe"}\n')
    with pytest.raises(DataError, match=r"line 1: not UTF-8 \(byte 13 is 0xff\); save it as UTF-8"):
        read_rows(file)
    file.write_text(lines(ROWS[:1]) + '{"prompt": ["cut \\ud83d"]}\n')
    with pytest.raises(DataError, match=r"line 2: the column 'prompt' has half a character \(.ud83d, a lone surrogate\)"):
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
