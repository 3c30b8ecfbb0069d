from __future__ import annotations

import json
import sys
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.core.errors import ConfigError, DataError
from runnel.llm.rewards.adapters import verl_score
from runnel.llm.rewards.code import python_tests
from runnel.llm.rewards.components import BUILTIN, RewardComponent
from runnel.llm.rewards.extract import extract
from runnel.llm.rewards.judging import RewardJob, RewardPool
from runnel.llm.rewards.scorers import judge, reward_model, score_of
from runnel.llm.rewards.verifiers import exact_match, length, regex_match, tag_format
from runnel.testing.rewards import check_reward

FILE = str(Path(__file__).with_name("rewards_for_tests.py"))


def test_every_built_in_name_leads_to_a_function():
    for name in BUILTIN:
        assert callable(RewardComponent("x", name).function())


def test_extraction():
    assert extract("<answer>1</answer> <answer>2</answer>", "tag:answer") == "2"
    assert extract("<answer>2", "tag:answer") is None
    assert extract(r"\boxed{a{b}c} and \boxed{open", "boxed") is None
    assert extract("a\nb\n", "last_line") == "b"
    assert extract("", "last_line") is None
    assert extract("```python\nx = 1\n```\n```js\ny\n```", "code") == "x = 1\n"
    assert extract("just text", "code") is None
    with pytest.raises(ConfigError, match="tag:NAME"):
        extract("x", "tags")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42,", "42"), ("so 42.", "42"), ("$42.", "42"), (".5", ".5"), ("-.5", "-.5"), ("x=-7", "-7"), ("-7", "-7"),
        ("5-3", "3"), ("5 - 3", "3"),
        ("(2)-1", "1"), ("GPT-4", "4"), ("1,234.5", "1,234.5"), ("1,2,3", "3"), ("12,34", "34"), ("1,234,5678", "5678"),
        ("3/4", "4"),
        ("1e-3", "1e-3"), ("50%", "50"), ("1.2.3", "3"), ("\N{MINUS SIGN}7", "\N{MINUS SIGN}7"), ("none", None), ("", None),
    ],
)  # fmt: skip
def test_the_last_number(text, number):
    assert extract(text, "last_number") == number


def read_numbers(text: str) -> list[str]:
    """All numbers of a text, letter by letter: a reading that shares nothing with the pattern."""
    found, i = [], 0
    while i < len(text):
        start = i
        if text[i] == "-" and not (i and (text[i - 1].isalnum() or text[i - 1] in "_)]}")):
            i += 1
        whole = len(text[i:]) - len(text[i:].lstrip("0123456789"))
        before = text[i - 1] if i else ""
        fraction = text[i + 1 :] if text[i : i + 1] == "." else ""
        if whole == 0 and not (fraction[:1].isdigit() and not before.isdigit()):
            i = start + 1
            continue
        i += whole
        while 1 <= whole <= 3 and text[i : i + 1] == "," and text[i + 1 : i + 4].isdigit() and len(text[i + 1 : i + 4]) == 3:
            if text[i + 4 : i + 5].isdigit():
                break
            i += 4
        if text[i : i + 1] == "." and text[i + 1 : i + 2].isdigit():
            i += 1
            while text[i : i + 1].isdigit():
                i += 1
        if text[i : i + 1] == "e":
            end = i + 1 + (text[i + 1 : i + 2] in ("-", "+"))
            digits = len(text[end:]) - len(text[end:].lstrip("0123456789"))
            if 1 <= digits <= 4 and not text[end + digits : end + digits + 1].isalnum():
                i = end + digits
        found.append(text[start:i])
    return found


@settings(max_examples=400, deadline=None)
@given(st.text(alphabet="0123456789,.-e+ )x/", max_size=14))
def test_the_last_number_against_a_reading_letter_by_letter(text):
    numbers = read_numbers(text)
    assert extract(text, "last_number") == (numbers[-1] if numbers else None)


def test_numbers_are_compared_as_numbers():
    texts = ["42,", ".5", "5-3", "1,200", "so 1200", "42.0", "-3", "1e-3"]
    answers = ["42", "0.5", "-3", "1200", "1,200", "42", "3", 0.001]
    assert exact_match([""] * 8, texts, answer=answers, extract="last_number") == [1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0]
    assert exact_match([""], [".5"], answer=["0.5"]) == [0.0]


def test_which_block_is_the_code():
    python, output = "```python\nx = 1\n```\n", "```\n6\n```\n"
    assert extract(python + "It prints:\n" + output, "code") == "x = 1\n"
    assert extract(python + "better:\n```py\nx = 2\n```\nwhich prints\n" + output, "code") == "x = 2\n"
    assert extract("```\ndef f():\n    pass\n```\nIt prints:\n" + output, "code") == "def f():\n    pass\n"
    assert extract("```\nprint(1)\n```\n```\nprint(2)\n```", "code") == "print(2)\n"
    assert extract("```bash\npip install x\n```\n" + output, "code") == "6\n"
    assert extract("```bash\npip install x\n```", "code") is None


@pytest.mark.parametrize(
    ("rule", "text", "answer"),
    [
        ("tag:answer", "<answer>4</answer> or so</answer>", "4"),
        ("tag:answer", "<answer>maybe <answer>4</answer>", "4"),
        ("tag:answer", "<answer>4</answer> <answer>5", "4"),
        ("tag:answer", "</answer><answer>", None),
        ("tag:answer", "</answer>", None),
        ("tag:answer", "<answer></answer>", ""),
        ("boxed", r"\boxed {4}", "4"),
        ("boxed", r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        ("boxed", r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        ("boxed", r"\boxed{\boxed{4}}", "4"),
        ("boxed", r"\boxed{4} and \boxed{5", None),
        ("boxed", r"boxed{4}", None),
        ("boxed", r"\boxed{}", ""),
        ("last_line", "a\n\n b \n \n", "b"),
        ("after:####", "#### 3 #### 4", "4"),
        ("after:####", "3", None),
        ("all", " \n4 ", "4"),
    ],
)
def test_what_each_rule_finds(rule, text, answer):
    found = extract(text, rule)
    assert (found if found is None else found.strip()) == answer


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("<think>a</think><answer>4</answer>", 1.0),
        ("\n<think>\na < b\n</think>\n\n<answer>4</answer>\n", 1.0),
        ("<think>I close with <answer> soon</think><answer>4</answer>", 0.0),
        ("<think>a</think></think><answer>4</answer>", 0.0),
        ("<think>a</think><answer>4</answer><answer>5</answer>", 0.0),
        ("<think>a<answer>4</answer></think>", 0.0),
        ("<think>a</think>4", 0.0),
        ("", 0.0),
    ],
)
def test_the_format_has_each_tag_once(text, right):
    assert tag_format([""], [text]) == [right]


def test_expected_numbers_are_compared_as_numbers():
    pairs = [
        ("7", 7.0, 1.0),
        ("7.0", 7, 1.0),
        ("1,200", 1200, 1.0),
        ("7", "7.0", 0.0),
        ("7 apples", 7, 0.0),
        ("True", True, 1.0),
        ("1", True, 0.0),
    ]
    assert exact_match([""] * 7, [t for t, _, _ in pairs], answer=[a for _, a, _ in pairs]) == [r for _, _, r in pairs]


def test_exact_match():
    assert exact_match([""] * 3, ["a", "B ", "c"], answer=[["x", "a"], "b", "c"], ignore_case=True) == [1.0, 1.0, 1.0]
    assert exact_match([""], ["so 7"], answer=[7], extract="last_number") == [1.0]
    check_reward(exact_match, columns={"answer": ["a", "b"]})


def test_regex_and_format_and_length():
    assert regex_match([""] * 2, ["ab12", "12"], pattern=["[0-9]+"] * 2, full=True) == [0.0, 1.0]
    good = "<think>why</think>\n<answer>4</answer>\n"
    bad = ["<answer>4</answer><think>why</think>", good + "more", "<think>" + good, "<think>a</think><answer>4"]
    assert tag_format([""] * 5, [good, *bad]) == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert length([""] * 2, ["a b c", "a"], unit="words", target=3) == pytest.approx([1.0, 1 / 3])
    assert length([""] * 2, ["", ""], unit="tokens", limit=2, completion_ids=[[1], [1, 2, 3]]) == [0.0, -1.0]
    with pytest.raises(ConfigError, match="tokens=True"):
        length([""], [""], unit="tokens", limit=2)
    with pytest.raises(ConfigError, match="either target or limit"):
        length([""], [""])
    check_reward(tag_format)


def judged(component, *completions, **columns):
    pool = RewardPool([component], timeout_s=20.0)
    pool.submit(RewardJob(0, ["p"] * len(completions), list(completions), columns, [[1]] * len(completions)))
    (verdict,) = pool.collect(block=True)
    pool.close()
    return verdict


def test_a_regex_that_backtracks_for_ever_is_stopped():
    component = RewardComponent("r", "regex", options={"pattern": "(a+)+$"}, timeout_s=0.5)
    assert judged(component, "a" * 40 + "b").failure == "timeout after 0.5 s (timeout_s of reward 'r')"


def test_mathematics_where_no_answer_is_expected():
    pytest.importorskip("math_verify")
    assert "no component applies" in judged(RewardComponent("math", "math"), "x", answer=[None]).failure


@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")
def test_code_against_tests():
    good, bad = "```python\ndef f(x):\n    return x + 1\n```", "```python\ndef f(x):\n    return x\n```"
    tests = [["assert f(1) == 2", "assert f(0) == f(0)"]] * 4
    assert python_tests([""] * 4, [good, bad, "no code", "```python\nimport os\nos._exit(0)\n```"], tests=tests) == [1, 0, 0, 0]
    assert python_tests([""], [bad], tests=[tests[0]], partial=True) == [0.5]
    cases = [[{"input": "3\n", "output": "6"}, {"input": "4\n", "output": "8"}]]
    assert python_tests([""], ["```\nprint(2 * int(input()))\n```"], cases=cases) == [1.0]
    assert python_tests([""], ["```\nprint(6)\n```"], cases=cases, partial=True) == [0.5]
    assert python_tests([""], [good]) == [None]


@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")
def test_code_through_the_pool():
    component = RewardComponent("tests", "python_tests", options={"sandbox": {"wall_s": 0.5}})
    verdict = judged(component, "```\nwhile True: pass\n```", "```\nx = 1\n```", tests=["assert x == 1"] * 2)
    assert verdict.rewards == {"tests": [0.0, 1.0]}


def test_limits_of_built_ins_leave_time_for_all_their_parts():
    assert RewardComponent("x", "python_tests").resolved().timeout_s == 600.0
    assert RewardComponent("x", "python_tests", timeout_s=5.0).resolved().timeout_s == 5.0
    assert RewardComponent("x", "math").resolved().timeout_s == 0.0


def test_verl_functions_are_taken_as_they_are():
    columns = {"data_source": ["gsm", "gsm"], "reward_model": [{"ground_truth": "4"}] * 2, "extra_info": [{}, {}]}
    component = RewardComponent("verl", "verl", options={"compute_score": f"{FILE}:score_of_verl"})
    assert judged(component, "4", "5", **columns).rewards == {"verl": [1.0, 0.0]}

    async def slow(data_source, solution_str, ground_truth, extra_info):
        return float(solution_str == ground_truth)

    assert verl_score([""], ["a"], compute_score=slow, ground_truth=["a"]) == [1.0]
    check_reward(partial(verl_score, compute_score=lambda data_source, solution_str, ground_truth, extra_info: 0.0))


def test_a_trained_reward_model_scores_text(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForSequenceClassification, PreTrainedTokenizerFast

    words = {w: i for i, w in enumerate(["<unk>", "p", "good", "bad", "</s>"])}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="</s>", unk_token="<unk>")
    torch.manual_seed(0)
    sizes = {"vocab_size": 5, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForSequenceClassification(LlamaConfig(**sizes, num_labels=1, pad_token_id=None))
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    scores = reward_model(["p", "p"], ["good", "bad"], model=str(tmp_path))
    assert scores[0] != scores[1]
    ids = torch.tensor([[1, 2]])
    assert scores[0] == pytest.approx(float(model.eval()(input_ids=ids).logits[0, 0].detach()))
    with pytest.raises(ConfigError, match="no such folder"):
        reward_model(["p"], ["good"], model=str(tmp_path / "none"))


class FakeJudge(BaseHTTPRequestHandler):
    """Answers with the number of letters, fails once on `busy`, and talks nonsense on `odd`."""

    seen: list[dict] = []  # noqa: RUF012
    busy = 1

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        FakeJudge.seen.append({"path": self.path, "key": self.headers.get("Authorization"), **body})
        text = body["messages"][0]["content"]
        if "busy" in text and FakeJudge.busy:
            FakeJudge.busy -= 1
            self.send_error(503)
            return
        if "closed" in text:
            self.send_error(401)
            return
        reply = "no idea" if "odd" in text else f"I say {len(text)}"
        data = json.dumps({"choices": [{"message": {"content": reply}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


@pytest.fixture
def judge_url():
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeJudge)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


def test_a_judge_behind_an_address(judge_url, monkeypatch):
    monkeypatch.setenv("MY_KEY", "k")
    options = {"base_url": judge_url, "model": "m", "template": "{completion}{topic}", "high": 100.0, "api_key_env": "MY_KEY"}
    options["pattern"] = r"I say (\d+)"
    assert judge(["p"] * 2, ["abc", "busy"], topic=["!", "!"], **options) == [4.0, 5.0]
    last = FakeJudge.seen[0]
    assert (last["path"], last["key"], last["model"]) == ("/v1/chat/completions", "Bearer k", "m")
    with pytest.raises(DataError, match="gave no score from 0 to 100 in the form asked for: 'no idea'"):
        judge(["p"], ["odd"], topic=["!"], **options)
    with pytest.raises(DataError, match="judge at http"):
        judge(["p"], ["a"], base_url="http://127.0.0.1:9", model="m", retries=0)
    monkeypatch.setattr(FakeJudge, "busy", 2)
    with pytest.raises(DataError, match=r"judge at .*: HTTPError: HTTP Error 503: Service Unavailable \(after 2 tries\)"):
        judge(["p"] * 2, ["abc", "busy"], topic=["!", "!"], retries=1, **options)
    before = len(FakeJudge.seen)
    with pytest.raises(DataError, match=r"judge at .*: DataError: HTTP 401"):
        judge(["p"], ["closed"], topic=["!"], **options)
    assert len(FakeJudge.seen) == before + 1, "an answer that would be the same again is not asked for again"
    verdict = judged(RewardComponent("judge", "judge", options=options), "abc", "odd", topic=["", ""])
    assert "no score" in verdict.failure


def reply_of(text, finish="stop"):
    return {"choices": [{"message": {"content": text}, "finish_reason": finish}]}


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("7", 7.0), (" 7.5\n", 7.5), ("7/10", 7.0), ("7 / 10.", 7.0), ("7 out of 10", 7.0), ("**7**", 7.0),
        ("Score: 7", 7.0), ("Rating: **7/10**", 7.0),
        ("10", 10.0), ("0", 0.0), ("10/10", 10.0), ("The answer has 3 faults.\nScore: 4", 4.0),
        ("Score: 3\n\nOn reflection:\nFinal score: 5/10", 5.0),
        ("<think>maybe 3</think>\n6", 6.0), ("<score>8</score>", 8.0), (r"\boxed{9}", 9.0), ("Grade = 2", 2.0),
        ("My score is 7.", 7.0),
    ],
)  # fmt: skip
def test_a_score_is_read_in_the_form_that_was_asked_for(text, score):
    assert score_of(reply_of(text), "", 0.0, 10.0) == score


@pytest.mark.parametrize(
    "text",
    [
        "Step 1", "Step 1: the answer names 3 planets", "The answer is 42, which is wrong.", "7/5", "7/100", "11", "-1",
        "10/7", "", "no idea", "1. It is short",
        "between 6 and 7", "7 or 8", "<think>score: 3", "Score: 3 of 4 facts are right", "Score: ten",
        "Score: 3 and Score: 4", "7-8", "1e1000", "nan", "Score: 7%",
        "100%", "I would not say the score is 7 here",
    ],
)  # fmt: skip
def test_a_reply_without_a_score_in_that_form_is_a_failure(text):
    with pytest.raises(DataError, match="no score"):
        score_of(reply_of(text), "", 0.0, 10.0)


def test_a_reply_that_was_cut_off_is_a_failure():
    with pytest.raises(DataError, match=r"cut off.*max_tokens"):
        score_of(reply_of("1", "length"), "", 0.0, 10.0)
    with pytest.raises(DataError, match="no choices"):
        score_of({"choices": []}, "", 0.0, 10.0)
    with pytest.raises(DataError, match="no text"):
        score_of(reply_of(None), "", 0.0, 10.0)


def test_a_form_of_ones_own():
    assert score_of(reply_of("[[3]] no: [[4]]"), r"\[\[(\d+)\]\]", 0.0, 10.0) == 4.0
    with pytest.raises(DataError, match="no score"):
        score_of(reply_of("[[x]] 4"), r"\[\[(\w)\]\]", 0.0, 10.0)
    with pytest.raises(ConfigError, match="one group"):
        score_of(reply_of("1 2"), r"(\d) (\d)", 0.0, 10.0)
