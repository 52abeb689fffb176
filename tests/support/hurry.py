"""Run in a process of gpustate before the program: what waits by the clock waits for a shorter time.

The waits themselves stay; a run against a cluster in memory takes seconds instead of minutes.
"""

from __future__ import annotations

from gpustate.cluster import api
from gpustate.rollout import slots, waves
from gpustate.schedulers import kubernetes, lease, slurm

api.TIMEOUT_S, api.PATIENCE_S, api._RETRY_S = 3.0, 4.0, 0.3
lease.VALID_S, lease.RENEW_S, lease._POLL_S = 3.0, 0.7, 0.2
kubernetes._RETRY_S, kubernetes._POLL_S, kubernetes._REFRESH_S = 0.2, 0.1, 10.0
slots._POLL_S = 0.2
waves._LOOK_S, waves._PUBLISH_S = 0.2, 1.0
slurm._POLL_S, slurm._REGISTER_S = 0.1, 3.0
