"""The workload as a policy."""

from bench_states import Files, Lines, Looks, Packages, Repositories, Units

from gpustate import Policy

policy = Policy(Packages(), Files(), Repositories(), Lines(), Units(), Looks())
