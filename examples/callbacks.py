"""The Python interface: train with callbacks, stop early, load the policy, measure it, play with it.

python examples/callbacks.py
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym

import runnel as rl


def main(total_steps: int = 30_000, target: float = 400.0, out: str = "runs") -> dict[str, Any]:
    seen: dict[str, list[Any]] = {"episodes": [], "evals": [], "checkpoints": [], "kl": []}

    def on_update(event: rl.Event) -> None:
        seen["kl"].append(event["metrics"]["kl"])

    def on_episode(event: rl.Event) -> None:
        seen["episodes"].append(event["return"])

    def on_eval(event: rl.Event) -> bool:
        seen["evals"].append(event["mean"])
        event.log({"my/push": float(event.policy.act([0.0, 0.0, 0.1, 0.0]))})  # a pole that leans right: 1 pushes right
        print(f"version {event['version']:3}  {event['steps']:6,} steps  mean {event['mean']:.1f}")
        return event["mean"] < target  # False stops the run

    def on_checkpoint(event: rl.Event) -> None:
        seen["checkpoints"].append(event["path"])

    run = rl.train(
        "ppo",
        env="CartPole-v1",
        num_steps=32,
        total_steps=total_steps,
        out=out,
        eval={"every": 10, "episodes": 10},
        checkpoint={"every": 20},
        on_update=on_update,
        on_episode=on_episode,
        on_eval=on_eval,
        on_checkpoint=on_checkpoint,
    )

    policy = rl.load(run.path)
    result = rl.evaluate(policy, "CartPole-v1", episodes=10)
    summary = rl.eval.summarise(result.returns)
    print(f"{run.status} after {run.steps:,} steps; 10 fresh episodes: {summary.mean:.1f}")

    env = gym.make("CartPole-v1")
    obs, _ = env.reset(seed=7)
    total, over = 0.0, False
    policy.reset()  # clears recurrent state, where a policy has any
    while not over:
        obs, reward, terminated, truncated, _ = env.step(policy.act(obs, deterministic=True))
        total, over = total + float(reward), terminated or truncated
    env.close()
    print(f"one episode by hand: {total:.0f}")
    return {**seen, "run": run, "returns": result.returns, "by_hand": total}


if __name__ == "__main__":
    main()
