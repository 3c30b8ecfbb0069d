from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from runnel.core.errors import ConfigError, DataError
from runnel.llm.rewards.adapters import from_verl, verl_score
from runnel.llm.rewards.code import python_tests
from runnel.llm.rewards.components import BUILTIN, RewardComponent
from runnel.llm.rewards.extract import extract
from runnel.llm.rewards.judging import RewardJob
from runnel.llm.rewards.pool import RewardPool
from runnel.llm.rewards.scorers import judge, reward_model
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
    assert judged(component, "a" * 40 + "b").failure == "timeout after 0.5 s"


def test_mathematics():
    pytest.importorskip("math_verify")
    answers = ["1/2", "1/2", "2", "$x^2+1$", None]
    texts = [r"so $\boxed{\frac{1}{2}}$", "it is 0.5", "3", "$1 + x^2$", "anything"]
    part = RewardComponent("math", "math")
    other = RewardComponent("any", "exact")
    pool = RewardPool([part, other])
    pool.submit(RewardJob(0, [""] * 5, texts, {"answer": [*answers[:4], None]}))
    pool.close()
    assert judged(part, *texts[:4], answer=answers[:4]).rewards == {"math": [1.0, 1.0, 0.0, 1.0]}
    assert "no component applies" in judged(part, "x", answer=[None]).failure


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
    check_reward(from_verl(lambda data_source, solution_str, ground_truth, extra_info: 0.0))


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
    assert judge(["p"] * 2, ["abc", "busy"], topic=["!", "!"], **options) == [4.0, 5.0]
    last = FakeJudge.seen[0]
    assert (last["path"], last["key"], last["model"]) == ("/v1/chat/completions", "Bearer k", "m")
    with pytest.raises(DataError, match="gave no number from 0 to 100: 'no idea'"):
        judge(["p"], ["odd"], topic=["!"], **options)
    with pytest.raises(DataError, match="judge at http"):
        judge(["p"], ["a"], base_url="http://127.0.0.1:9", model="m", retries=0)
    verdict = judged(RewardComponent("judge", "judge", options=options), "abc", "odd", topic=["", ""])
    assert "no number" in verdict.failure
