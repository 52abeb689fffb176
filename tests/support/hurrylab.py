"""Run in a process of gpustate before the program, as ``hurry.py``: shorter waits, long enough for a real cluster."""

from __future__ import annotations

from gpustate.cluster import api
from gpustate.rollout import slots, waves
from gpustate.schedulers import lease
from gpustate.schedulers.kubernetes import drain, holds

api.TIMEOUT_S, api.PATIENCE_S = 8.0, 9.0
lease.VALID_S, lease.RENEW_S, lease._POLL_S = 6.0, 1.5, 0.5
drain._RETRY_S, drain._POLL_S, holds._POLL_S = 1.0, 0.5, 0.5
slots._POLL_S = 0.5
waves._LOOK_S, waves._PUBLISH_S = 0.5, 2.0
