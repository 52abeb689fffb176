"""Containers that got no GPUs, one for each kind of failure: what programs really printed, where they did."""

from __future__ import annotations

from dataclasses import replace

from gpustate.diagnosis import chain

WAY = "containerd 1.7.24, handler nvidia"
GPUS = ("GPU-aaaaaaaa", "GPU-bbbbbbbb")
NODES = ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl")
FILES = ("/usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06",)
SHIM = "ctr: failed to create shim task: OCI runtime create failed: "
INIT = f"{SHIM}runc create failed: unable to start container process: error during container init: "


def ran(**changes: object) -> chain.ContainerResult:
    """A container that ran, and what is odd about it."""
    fields: dict[str, object] = {"devices": NODES, "files": FILES, "gpus": GPUS, "cuda_ok": 2}
    return chain.ContainerResult(WAY, **{**fields, **changes})  # type: ignore[arg-type]


def failed(error: str) -> chain.ContainerResult:
    """A container that did not start."""
    return chain.ContainerResult(WAY, error=error)


#: By kind. Texts of containerd 1.6.20 and 1.7.24, runc 1.1.15 and toolkit 1.18.2, as printed on lab nodes; those of
#: AppArmor, SELinux, seccomp and cgroupsPath as runc's source has them.
RESULTS = {
    "cri-dead": chain.ContainerResult("containerd", "cri-dead", "Version: unknown service runtime.v1.RuntimeService"),
    "no-handler": chain.ContainerResult(WAY, "no-handler", "no nvidia; it has runc"),
    "cgroup-drivers": chain.ContainerResult(WAY, "cgroup-drivers", "handler nvidia: systemd, handler runc: cgroupfs"),
    "no-image": chain.ContainerResult("image", "no-image", "/usr/bin/python3 exited with 1: No module named 'ctypes'"),
    "nothing-injected": ran(devices=(), files=(), gpus=(), cuda_ok=0, nvml_error="libnvidia-ml.so.1: cannot open shared object file: No such file or directory"),
    "gpus-missing": ran(gpus=GPUS[:1], devices=NODES[::2]),
    "library-missing": ran(gpus=(), nvml_error="libnvidia-ml.so.1: cannot open shared object file: No such file or directory"),
    "denied": ran(denied=NODES),
    "hook-devices": ran(unlisted=NODES, hooked=NODES, programs=("runc 1.1.15", "systemd 257")),
    "dev-char": ran(unlisted=NODES, programs=("runc 1.1.5", "systemd 252")),
    "cuda": ran(cuda_ok=1, cuda_error=999, cuda_text="GPU-aaaaaaaa: cuInit: CUDA_ERROR_UNKNOWN"),
    "disk-full": failed("ctr: failed to ingest \"1468/layer.tar\": failed to copy: failed to send write: write /var/lib/containerd/io.containerd.content.v1.content/ingest/5c10/data: no space left on device: unknown"),
    "low-level-missing": failed(f"{SHIM}failed to create NVIDIA Container Runtime: error constructing low-level runtime: error locating runtime: no runtime binary found from candidate list: [no-such-runc]: unknown"),
    "shim-missing": failed('ctr: failed to start shim: failed to resolve runtime path: runtime "io.containerd.runc.v2" binary not installed "containerd-shim-runc-v2": file does not exist: unknown'),
    "handler-binary": failed(f"{SHIM}unable to retrieve OCI runtime error (open /run/x/log.json: no such file or directory): fork/exec /usr/bin/nvidia-container-runtime.gone: no such file or directory: unknown"),
    "toolkit-config": failed(f"{SHIM}failed to create NVIDIA Container Runtime: failed to construct OCI spec modifier: invalid runtime mode: nonsense: unknown"),
    "legacy": failed(f"{INIT}error running hook #0: error running hook: exit status 1, stdout: , stderr: Using requested mode 'legacy' nvidia-container-cli: initialization error: driver error: unknown"),
    "not-accepted": failed(f"{SHIM}failed to create NVIDIA Container Runtime: insufficient privileges to read device list from NVIDIA_VISIBLE_DEVICES envvar: unknown"),
    "cdi-unresolved": failed(f"{SHIM}could not apply required modification to OCI specification: error modifying OCI spec: failed to inject CDI devices: unresolvable CDI devices nvidia.com/gpu=all: unknown"),
    "cdi-version": replace(failed("Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all"), way="podman 4.9.3, CDI device nvidia.com/gpu=all"),
    "device-missing": failed(f'{SHIM}could not apply required modification to OCI specification: error modifying OCI spec: failed to inject CDI devices: failed to inject devices: failed to stat CDI host device "/dev/nvidia-modeset": no such file or directory: unknown'),
    "file-missing": failed(f'{INIT}error mounting "/usr/lib/x86_64-linux-gnu/libcuda.so.570.86.15" to rootfs at "/usr/lib/x86_64-linux-gnu/libcuda.so.570.86.15": create mount destination for /usr/lib/x86_64-linux-gnu/libcuda.so.570.86.15 mount: bind mount source stat: stat /usr/lib/x86_64-linux-gnu/libcuda.so.570.86.15: no such file or directory: unknown'),
    "hook-missing": failed(f"{INIT}error running hook #0: fork/exec /usr/bin/nvidia-cdi-hook: permission denied: unknown"),
    "hook-failed": failed(f"{INIT}error running hook #0: error running hook: exit status 4, stdout: , stderr: quota of hooks reached: unknown"),
    "cgroup-path": failed(f'{SHIM}runc create failed: expected cgroupsPath to be of format "slice:prefix:name" for systemd cgroups, got "/k8s.io/x" instead: unknown'),
    "apparmor": failed(f"{INIT}unable to apply apparmor profile: apparmor failed to apply profile: write /proc/self/attr/exec: permission denied: unknown"),
    "selinux": failed(f"{INIT}error setting SELinux label: write /proc/thread-self/attr/exec: permission denied: unknown"),
    "seccomp": failed(f"{INIT}error loading seccomp filter into kernel: operation not permitted: unknown"),
    "timeout": failed("ctr did not finish within 20 s"),
    "refused": failed(f"{INIT}exec /usr/bin/python3.13: permission denied: unknown"),
    "not-started": failed("ctr: something new"),
}  # fmt: skip

#: Texts of crun 1.8.1 and 1.21, as they print them, by the kind of failure.
OF_CRUN = [
    ("file-missing", "error stat'ing file `/usr/lib/x86_64-linux-gnu/libcuda.so.570.86.15`: No such file or directory"),
    ("file-missing", "cannot stat `/usr/lib/x86_64-linux-gnu/libcuda.so.570.86.15`: No such file or directory"),
    ("hook-failed", "error executing hook `/usr/bin/nvidia-cdi-hook` (exit code: 1)"),
    ("apparmor", "AppArmor is not initialized correctly"),
    ("selinux", "write to `/proc/self/attr/keycreate`: Invalid argument"),
    ("seccomp", "invalid seccomp action `SCMP_ACT_NOPE`"),
    ("refused", "the path `/usr/bin/python3.13` exists but it is not executable: Operation not permitted"),
    ("refused", "open executable: Permission denied"),
    ("not-started", "executable file `/usr/bin/python3.13` not found in $PATH: No such file or directory"),
]  # fmt: skip
