"""The watch for a collapse: each rule on made-up rows, what tells a collapse from a solved task, and what is told how often."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runnel.core.config import flat, to_data
from runnel.run import registry
from runnel.track.collapse import Finding, Watcher, open_collapses
from runnel.track.collapse_rules import RULES, CollapseRule

ROOT = Path(__file__).parents[3]
SIGNAL = {"groups_zero_signal": 0.5, "loss/policy": 1e-3, "reward/mean": 0.4, "entropy": 0.5}
SILENT = {"groups_zero_signal": 1.0, "loss/policy": 0.0, "reward/mean": 0.3, "entropy": 0.5}
FELL = {"return": 9.0, "episodes": 100.0}
"""Below what `learned` has shown before."""
Rows = tuple[dict[str, float], dict[str, float]]
CASES: dict[tuple[str, str], Rows] = {
    ("language", "no signal"): (SILENT, SIGNAL),
    ("language", "no pairs"): ({"pairs": 0.0, "reward/mean": 0.2}, {"pairs": 1.0, "reward/mean": 0.2}),
    ("language", "no entropy"): ({"entropy": 0.0009, "reward/mean": 0.3}, {"entropy": 0.0011, "reward/mean": 0.3}),
    ("language", "no gradient"): ({"grad_norm": 0.0}, {"grad_norm": 1e-9}),
    ("language", "large steps"): ({"approx_kl": 1.0}, {"approx_kl": 0.9}),
    ("language", "far from the reference"): ({"kl": 10.0}, {"kl": 9.0}),
    ("language", "all clipped"): ({"clip_fraction": 0.9}, {"clip_fraction": 0.89}),
    ("language", "values run away"): ({"loss/value": 4e4}, {"loss/value": 3e4}),
    ("environment", "no entropy"): ({"entropy": 0.0, **FELL}, {"entropy": 0.01, **FELL}),
    ("environment", "no gradient"): ({"grad_norm": 0.0, **FELL}, {"grad_norm": 1e-7, **FELL}),
    ("environment", "large steps"): ({"kl": 2.0}, {"kl": 0.2}),
    ("environment", "all clipped"): (
        {"clip_fraction": 0.72, "optimiser_steps": 4},
        {"clip_fraction": 0.6, "optimiser_steps": 4},
    ),
    ("environment", "values run away"): ({"q": -2e6, "return": 100.0}, {"q": -1e6, "return": 100.0}),
}
"""Rows that show a collapse, and rows on the other side of its limit. Those that need rows of their own are below."""
OTHERS = {("language", "never a signal"), ("environment", "constant returns")}
SIMPLE = [rule for rule in RULES if (rule.world, rule.kind) in CASES]


def names(rules: list[CollapseRule]) -> list[str]:
    return [f"{rule.world}-{rule.kind}" for rule in rules]


def play(watcher: Watcher, row: dict[str, float], num: int, start: int = 1) -> list[tuple[int, Finding]]:
    return [(v, found) for v in range(start, start + num) for found in watcher.see(v, row)]


def learned(watcher: Watcher, *returns: float) -> Watcher:
    """The watcher of a run that has had these returns, or a signal."""
    watcher.see(0, {"groups_zero_signal": 0.0, "reward/mean": 0.9} if not returns else {})
    for value in returns:
        watcher.see(0, {"return": value, "episodes": 100.0})
    return watcher


def watcher_of(rule: CollapseRule, **settings: Any) -> Watcher:
    found = Watcher({"ppo.lr": 0.1, "learner.lr": 0.1, **settings}, world=rule.world)
    return learned(found, 9.0, 100.0) if rule.world == "environment" else learned(found)


def test_every_rule_has_a_case_and_a_name_of_its_own() -> None:
    assert {(rule.world, rule.kind) for rule in RULES} == {*CASES, *OTHERS}
    assert len({(rule.world, rule.kind) for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("rule", SIMPLE, ids=names(SIMPLE))
def test_a_rule_is_told_once_after_its_updates_in_a_row_with_the_version_at_which_it_began(rule: CollapseRule) -> None:
    bad, good = CASES[rule.world, rule.kind]
    watcher = watcher_of(rule)
    assert play(watcher, bad, rule.sign.updates - 1) == [], "one row short of it"
    assert play(watcher, good, 1, start=100) == [], "on the other side of the limit"
    found = play(watcher, bad, 5 * rule.sign.updates, start=200)
    ((version, finding),) = [(v, f) for v, f in found if f.kind == rule.kind]
    assert (version, finding.level, finding.since) == (200 + rule.sign.updates - 1, "collapse", 200)
    assert finding.text.startswith(f"collapse since version 200 ({rule.kind}): {rule.shows}")
    assert rule.means in finding.text


@pytest.mark.parametrize("rule", SIMPLE, ids=names(SIMPLE))
def test_an_incident_that_is_over_may_come_again_and_one_good_row_does_not_end_it(rule: CollapseRule) -> None:
    bad, good = CASES[rule.world, rule.kind]
    watcher, num = watcher_of(rule), rule.sign.updates
    assert [f.level for _, f in play(watcher, bad, num) if f.kind == rule.kind] == ["collapse"]
    assert play(watcher, good, num - 1, start=100) == []
    assert [f for _, f in play(watcher, bad, num, start=200) if f.kind == rule.kind] == [], "it is the same incident"
    assert [(f.kind, f.level) for _, f in play(watcher, good, num, start=300)] == [(rule.kind, "over")]
    again = [f for _, f in play(watcher, bad, num, start=400) if f.kind == rule.kind]
    assert [(f.level, f.since) for f in again] == [("collapse", 400)]


def test_a_run_that_never_had_a_signal_is_told_later_and_otherwise() -> None:
    """A hard task has none at first, and may have later: that is not yet a collapse after a few updates."""
    watcher = Watcher({"warmup_updates": 0, "group_size": 8}, world="language")
    assert play(watcher, {**SILENT, "reward/mean": 0.0}, 49) == []
    (found,) = watcher.see(50, {**SILENT, "reward/mean": 0.0})
    assert (found.kind, found.level, found.since) == ("never a signal", "collapse", 1)
    assert "the mean reward has always been 0" in found.text
    assert "raise warmup_updates (now 0), group_size (now 8)" in found.text
    assert [f.level for _, f in play(watcher, SIGNAL, 50, start=51)] == ["over"]
    assert [f.kind for _, f in play(watcher, SILENT, 20, start=200)] == ["no signal"]


def test_rows_that_say_nothing_about_a_rule_neither_count_nor_end_it() -> None:
    """Some learners report numbers only every so many updates."""
    watcher = Watcher({}, world="environment")
    found = [f for v in range(1, 11) for f in watcher.see(v, {"kl": 3.0} if v % 2 else {"lr": 0.1})]
    assert [(f.kind, f.since) for f in found] == [("large steps", 1)]


# ---------------------------------------------------------------------------------------------------- solved, or collapsed
def returns(watcher: Watcher, value: float, num: int, start: int, **metrics: float) -> list[Finding]:
    """`num` updates with 20 episodes each that all return `value`."""
    rows = [(v, {"return": value, "episodes": 20.0 * v, **metrics}) for v in range(start, start + num)]
    return [found for v, row in rows for found in watcher.see(v, row)]


def test_constant_returns_are_a_collapse_if_what_was_learned_is_lost() -> None:
    watcher = Watcher({"td3.actor_lr": 1e-3}, world="environment")
    for v, value in enumerate((-200.0, -150.0, -110.0), start=1):
        returns(watcher, value, 1, 10 * v)
    (found,) = returns(watcher, -200.0, 60, 100)
    assert (found.kind, found.level, found.since) == ("constant returns", "collapse", 100)
    assert "the return is -200, and was between -200 and -110" in found.text
    assert "lower td3.actor_lr (now 0.001)" in found.text


def test_constant_returns_are_no_collapse_at_the_best_that_was_seen() -> None:
    watcher = Watcher({}, world="environment")
    for v, value in enumerate((20.0, 200.0, 499.0), start=1):
        returns(watcher, value, 1, 10 * v)
    assert returns(watcher, 500.0, 300, 100) == []


def test_returns_that_never_changed_are_a_note() -> None:
    """A reward that is hard to find looks like this for long, and is found in the end."""
    (found,) = returns(Watcher({}, world="environment"), -200.0, 300, 1)
    assert (found.kind, found.level) == ("constant returns", "note")


def test_the_constant_returns_of_self_play_say_nothing() -> None:
    """They are means over all seats, and what one wins the other loses."""
    watcher = Watcher({}, world="environment")
    row = {"return": 0.0, "league/win_rate": 0.6}
    assert [found for v in range(1, 301) for found in watcher.see(v, {**row, "episodes": 10.0 * v})] == []


@pytest.mark.parametrize(
    ("value", "settings", "level"),
    [
        (500.0, {}, "note"),
        (300.0, {}, "note"),
        (200.0, {}, "collapse"),
        (480.0, {"eval.stop_return": 500.0}, "note"),
        (300.0, {"eval.stop_return": 500.0}, "collapse"),
    ],
)
def test_a_policy_without_entropy_that_kept_what_it_learned_has_converged(
    value: float, settings: dict[str, Any], level: str
) -> None:
    watcher = learned(Watcher({"ppo.lr": 0.1, **settings}, world="environment"), 20.0, 500.0)
    (found,) = [f for _, f in play(watcher, {"entropy": 0.0, "return": value, "episodes": 200.0}, 30)]
    assert (found.kind, found.level) == ("no entropy", level)
    assert "lower ppo.lr (now 0.1)" in found.text


def test_a_run_that_converged_and_then_loses_it_is_told_after_all() -> None:
    watcher = learned(Watcher({}, world="environment"), 20.0, 500.0)
    rows = [{"entropy": 0.0, "return": value, "episodes": 200.0} for value in [500.0] * 30 + [30.0] * 30]
    found = [f.level for v, row in enumerate(rows) for f in watcher.see(v, row)]
    assert found == ["note", "collapse"]


def test_a_run_that_starts_from_a_solved_one_is_not_a_collapse() -> None:
    row = {"entropy": 0.0, "return": 1.0, "episodes": 200.0}
    assert [f.level for _, f in play(Watcher({"init_from": ""}, world="environment"), row, 30)] == ["collapse"]
    assert [f.level for _, f in play(Watcher({"init_from": "runs/a"}, world="environment"), row, 30)] == ["note"]


def test_the_entropy_of_continuous_actions_may_pass_zero() -> None:
    watcher = Watcher({}, world="environment")
    assert [f for v in range(200) for f in watcher.see(v, {"entropy": 1.0 - 0.011 * v})] == []


def test_the_value_loss_may_grow_with_returns() -> None:
    """From 20 to 5,000 a healthy critic's squared error grows by 62,500."""
    watcher = Watcher({}, world="environment")
    rows = [{"loss/value": 0.5 * r * r, "q": 2 * r, "return": r, "episodes": 100.0} for r in range(20, 5000, 20)]
    assert [f for v, row in enumerate(rows) for f in watcher.see(v, row)] == []


def test_a_value_loss_says_nothing_before_a_first_return() -> None:
    """Rewards may be large: nobody knows their scale before an episode has ended."""
    row = {"loss/value": 1e9, "q": 1e6}
    watcher = Watcher({}, world="environment")
    assert play(watcher, row, 50) == []
    assert play(watcher, {**row, "return": 1e6, "episodes": 1.0}, 50, start=51) == []


@pytest.mark.parametrize(("mean", "settings"), [(1.0, {"eval.pass_reward": 1.0}), (0.5, {"eval.stop_return": 0.5}), (2.0, {})])
def test_a_language_model_that_has_solved_its_task_is_told_so_and_has_not_collapsed(
    mean: float, settings: dict[str, Any]
) -> None:
    watcher = Watcher({"learner.lr": 0.1, **settings}, world="language")
    watcher.see(1, {**SIGNAL, "reward/mean": 0.1})
    found = [f for _, f in play(watcher, {**SILENT, "reward/mean": mean, "entropy": 1e-4}, 40, start=2)]
    assert [(f.kind, f.level) for f in found] == [("no signal", "note"), ("no entropy", "note")]
    assert all("solved, or too easy" in f.text for f in found)


def test_a_constant_reward_below_the_best_is_a_collapse() -> None:
    watcher = Watcher({"eval.pass_reward": 1.0}, world="language")
    watcher.see(1, {**SIGNAL, "reward/mean": 0.6})
    (found,) = [f for _, f in play(watcher, {**SILENT, "reward/mean": 0.3}, 40, start=2)]
    assert found.level == "collapse"
    assert "the mean reward is 0.3, and was between 0.3 and 0.6" in found.text


def test_algorithms_that_compare_prompts_with_each_other_have_signal_without_spread_in_a_group() -> None:
    """REINFORCE, ReMax and PPO with a critic: one completion a prompt has no spread, and a loss that is not 0."""
    row = {**SILENT, "loss/policy": -0.02}
    assert play(Watcher({}, world="language"), row, 200) == []


def test_a_supervised_model_that_is_sure_of_every_token_has_learned() -> None:
    assert play(Watcher({}, world="language"), {"entropy": 1e-5, "loss/sft": 1e-4, "grad_norm": 1e-4}, 200) == []


def test_pairs_that_are_all_learned_are_no_collapse() -> None:
    watcher = Watcher({}, world="language")
    watcher.see(1, {"preference/accuracy": 0.5, "grad_norm": 0.7})
    found = play(watcher, {"preference/accuracy": 1.0, "grad_norm": 0.0}, 20, start=2)
    assert [f.level for _, f in found] == ["note"]


def test_rows_of_seeded_runs_that_are_kept_show_no_collapse() -> None:
    cases = json.loads((ROOT / "tests" / "golden" / "golden_runs.json").read_text())["cases"]
    kept = {name: runs["run"]["updates"] for name, runs in cases.items() if name in ("recipe ppo", "recipe dqn", "recipe grpo")}
    assert len(kept) == 3
    for name, rows in kept.items():
        watcher = Watcher({}, world="language" if name == "recipe grpo" else "environment")
        assert [f for row in rows for f in watcher.see(row["version"], row["metrics"])] == []
        assert all(hold.num == 0 for hold in watcher._holds.values()), "not even the start of one"


# --------------------------------------------------------------------------------------------------------------- the advice
ABLE: dict[str, set[str]] = {
    "no signal": {"grpo", "dr_grpo", "rloo", "reinforce", "remax", "dapo", "gspo", "aipo", "decoupled", "token_ppo", "reverse"},
    "no pairs": {"online_dpo", "make_pairs"},
    "large steps": {"ppo", "cartpole", "appo", "a2c", "impala", "grpo", "dapo", "gspo", "aipo", "decoupled", "token_ppo"},
    "far from the reference": {"grpo", "dapo", "token_ppo"},
    "all clipped": {"ppo", "cartpole", "appo", "grpo", "dapo", "gspo", "decoupled", "aipo", "token_ppo"},
    "values run away": {"ppo", "a2c", "impala", "appo", "dqn", "sac", "td3", "ddpg", "token_ppo"},
    "no entropy": {"ppo", "a2c", "impala", "appo", "sac", "grpo", "rloo", "online_dpo"},
    "no gradient": {"ppo", "a2c", "dqn", "sac", "td3", "ddpg", "sft", "dpo", "reward_model"},
    "constant returns": {"ppo", "a2c", "impala", "appo", "dqn", "sac", "td3", "ddpg"},
}
ABLE["never a signal"] = ABLE["no signal"]
"""Recipes whose updates have the metrics of a rule."""


@pytest.mark.parametrize("recipe", list(registry.RECIPES))
def test_every_recipe_is_told_settings_that_it_has(recipe: str) -> None:
    config = registry.load_recipe(recipe).Config()
    settings = flat(to_data(config))
    world = "environment" if "env" in settings else "language"
    watcher = Watcher(settings, world=world)
    for rule in (rule for rule in RULES if rule.world == world):
        advice = watcher._advice(rule)
        assert bool(advice) or recipe not in ABLE[rule.kind], rule.kind
        for pattern in (p for _, patterns in rule.fixes for p in patterns):
            assert all(name in settings for name in watcher._named(pattern))


def test_every_setting_that_a_rule_names_is_one_of_some_recipe() -> None:
    for rule in RULES:
        configs = [flat(to_data(registry.load_recipe(recipe).Config())) for recipe in registry.RECIPES]
        watchers = [Watcher(s, world=rule.world) for s in configs if ("env" in s) == (rule.world == "environment")]
        for pattern in (p for _, patterns in rule.fixes for p in patterns):
            assert any(watcher._named(pattern) for watcher in watchers), (rule.kind, rule.world, pattern)


def test_the_advice_names_the_settings_of_the_recipe_and_what_they_are_now() -> None:
    settings = flat(to_data(registry.load_recipe("grpo").Config()))
    watcher = learned(Watcher(settings, world="language"))
    ((_, found),) = play(watcher, {**SILENT, "reward/mean": 0.3}, 10)
    assert "lower learner.lr (now 0.0001)" in found.text
    assert (
        "raise grpo.entropy_coef (now 0), grpo.kl_coef (now 0), learner.temperature (now 1), group_size (now 8)" in found.text
    )
    assert "reinforce" not in found.text


# ------------------------------------------------------------------------------------------------------------------- resume
@pytest.mark.parametrize("rule", RULES, ids=names(list(RULES)))
def test_a_watch_that_is_saved_anywhere_goes_on_as_if_it_had_not_been(rule: CollapseRule) -> None:
    bad, good = CASES.get((rule.world, rule.kind), (FELL, {"return": 90.0, "episodes": 100.0}))
    some = [*[good] * 3, *[bad] * (rule.sign.updates + 3), *[good] * (rule.sign.updates + 1), *[bad] * (rule.sign.updates + 2)]
    rows = [{**row, "episodes": row["episodes"] + 40.0 * v} if "episodes" in row else row for v, row in enumerate(some)]
    whole = watcher_of(rule)
    expected = [found for v, row in enumerate(rows) for found in whole.see(v, row)]
    for cut in range(0, len(rows), 5):
        watcher = watcher_of(rule)
        found = [f for v, row in enumerate(rows[:cut]) for f in watcher.see(v, row)]
        state = json.loads(json.dumps(watcher.snapshot(), allow_nan=False))
        again = Watcher({"ppo.lr": 0.1, "learner.lr": 0.1}, world=rule.world)
        again.restore(state)
        found += [f for v, row in enumerate(rows[cut:], start=cut) for f in again.see(v, row)]
        assert [f for f in found if f.level != "still"] == expected
        assert again.snapshot() == whole.snapshot()


def test_a_run_that_is_resumed_in_a_collapse_has_as_long_to_come_out_of_it() -> None:
    watcher = Watcher({}, world="environment")
    play(watcher, {"kl": 3.0}, 7)
    state = watcher.snapshot()
    for row, expected in (({"kl": 3.0}, [(12, "still")]), ({"kl": 0.0}, [(12, "over")])):
        again = Watcher({}, world="environment")
        again.restore(state)
        assert [(v, f.level) for v, f in play(again, row, 20, start=8)] == expected


def test_what_is_told_of_a_run_is_what_is_not_over() -> None:
    def event(kind: str, **more: Any) -> dict[str, Any]:
        return {"kind": "event", "what": "collapse", "collapse": kind, **more}

    rows = [{"what": "note"}, event("a", text="1"), event("b", text="2"), event("a", over=True), event("c", text="3")]
    assert [row["text"] for row in open_collapses(rows)] == ["2", "3"]


# --------------------------------------------------------------------------------------------------------------------- docs
def test_the_page_of_the_docs_has_every_rule_with_its_numbers() -> None:
    page = (ROOT / "docs/guides/collapse.md").read_text()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| **")]
    shown = {(world, kind.strip("*")): rest for kind, world, *rest in rows}
    assert shown.keys() == {(rule.world, rule.kind) for rule in RULES}
    for rule in RULES:
        when, updates, means, fixes = shown[rule.world, rule.kind]
        assert all(f"`{name}`" in when for name in rule.sign.metrics)
        assert f"{rule.sign.limit:g}" in when
        assert int(updates) == rule.sign.updates
        assert means == rule.means
        assert fixes == "; ".join(f"{verb} " + ", ".join(f"`{p}`" for p in patterns) for verb, patterns in rule.fixes)
