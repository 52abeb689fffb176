"""Run in a process of gpustate before the program: what waits by the clock waits for a shorter time.

The waits themselves stay; a run against a cluster in memory takes seconds instead of minutes.
"""

from __future__ import annotations

from gpustate.cluster import api
from gpustate.rollout import slots, waves
from gpustate.schedulers import lease
from gpustate.schedulers.kubernetes import drain, holds
from gpustate.schedulers.slurm import drain as slurm_drain
from gpustate.schedulers.slurm import holds as slurm_holds
from gpustate.schedulers.slurm import members as slurm_members

api.TIMEOUT_S, api.PATIENCE_S, api._RETRY_S = 3.0, 4.0, 0.3
lease.VALID_S, lease.RENEW_S, lease._POLL_S = 3.0, 0.7, 0.2
drain._RETRY_S, drain._POLL_S = 0.2, 0.1
holds._POLL_S, holds._REFRESH_S, holds._REPORTED_S = 0.1, 10.0, 0.5
slots._POLL_S = 0.2
waves._LOOK_S, waves._PUBLISH_S = 0.2, 1.0
slurm_drain._POLL_S = slurm_holds._POLL_S = slurm_members._POLL_S = 0.1
slurm_holds._REGISTER_S = 3.0
