#!/usr/lib/gpustate-lab/python -SB
"""Simulated nvidia-container-cli: version, info and list."""

# The modules of the node lie beside this one there, not here.
# mypy: disable-error-code="import-not-found,no-any-return"
from __future__ import annotations

import sys

sys.path.insert(0, "/usr/lib/nvidia-container-toolkit")


def main() -> int:
    arguments = [
        one for one in sys.argv[1:] if one not in ("-k", "--load-kmods", "-d", "/dev/stderr")
    ]
    if arguments[:1] in (["--version"], ["-V"]):
        print("cli-version: @VERSION@\nlib-version: @VERSION@\nbuild revision: simulated")
        return 0
    import cdispec  # of another package: what is asked without it still answers

    try:
        nvml = cdispec.Nvml()
        version, gpus = nvml.text("nvmlSystemGetDriverVersion"), nvml.gpus()
    except cdispec.NvmlError as error:
        print(f"nvidia-container-cli: initialization error: nvml error: {error}", file=sys.stderr)
        return 1
    if arguments[:1] == ["info"]:
        print(f"NVRM version:   {version}")
        for gpu in gpus:
            print(
                f"\nDevice Index:   {gpu['index']}\nDevice Minor:   {gpu['minor']}\nGPU UUID:       {gpu['uuid']}"
            )
        return 0
    if arguments[:1] == ["list"]:
        print(
            "\n".join(
                [
                    *cdispec.COMMON_NODES,
                    *(f"/dev/nvidia{gpu['minor']}" for gpu in gpus),
                    *cdispec.libraries(version),
                ]
            )
        )
        return 0
    print("nvidia-container-cli: the lab simulates info and list", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
