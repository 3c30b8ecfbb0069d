# ruff: noqa: F401
"""Imported by the process that runs are forked from: what the processes of almost every run need, each of them would import."""

import gymnasium.envs.classic_control
import numpy.ctypeslib

import runnel.data.sequences
import runnel.envs.device.sampler
import runnel.envs.render
import runnel.envs.toy
import runnel.envs.wrappers
import runnel.eval.recording
import runnel.flow.workers.buffer
import runnel.graphs.on_policy
import runnel.graphs.replay
import runnel.nets.policy
import runnel.recipes.dqn
import runnel.recipes.ppo
import runnel.recipes.sac
