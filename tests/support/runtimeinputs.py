"""Configurations of docker and CRI-O as people write them: what their editors must keep byte for byte."""

from __future__ import annotations

from collections.abc import Mapping

BINARY = "/usr/bin/true"
_CRUN = "/usr/bin/crun"

#: Name to the text of daemon.json; ``None`` for no file. Every one is a file that docker 26 starts with.
DOCKER: Mapping[str, str | None] = {
    "missing": None,
    "empty-object": "{}",
    "empty-object-line": "{}\n",
    "blank-object": "{ }\n",
    "spread-empty-object": "{\n}\n",
    "one-line": '{"debug": false, "log-level": "info"}\n',
    "one-line-dense": '{"debug":false,"log-level":"info"}',
    "two-spaces": '{\n  "debug": false,\n  "labels": ["rack=4"]\n}\n',
    "four-spaces": '{\n    "debug": false,\n    "shutdown-timeout": 20\n}\n',
    "tabs": '{\n\t"debug": false,\n\t"log-opts": {\n\t\t"max-size": "10m"\n\t}\n}\n',
    "crlf": '{\r\n  "debug": false,\r\n  "shutdown-timeout": 20\r\n}\r\n',
    "no-last-newline": '{\n  "debug": false\n}',
    "much-space": '\n\n{\n\n  "debug"  :  false ,\n\n  "shutdown-timeout" : 20\n\n}\n\n\n',
    "comma-first": '{ "debug": false\n, "shutdown-timeout": 20\n, "labels": [ "a=b" ]\n}\n',
    "features": '{\n  "features": {\n    "buildkit": true\n  }\n}\n',
    "features-one-line": '{\n  "features": {"buildkit": true, "containerd-snapshotter": false},\n  "debug": false\n}\n',
    "features-empty": '{\n  "features": {},\n  "debug": false\n}\n',
    "other-runtimes": '{\n  "runtimes": {\n    "crun": {\n      "path": "/usr/bin/crun"\n    }\n  }\n}\n',
    "other-runtimes-one-line": '{"runtimes":{"crun":{"path":"/usr/bin/crun"}},"debug":false}\n',
    "runtimes-empty": '{\n  "runtimes": {},\n  "debug": false\n}\n',
    "other-default": '{\n  "default-runtime": "crun",\n  "runtimes": {"crun": {"path": "/usr/bin/crun"}}\n}\n',
    "nvidia-ctk-same": '{\n    "runtimes": {\n        "nvidia": {\n            "args": [],\n            "path": "/usr/bin/true"\n        }\n    }\n}',
    "nvidia-differs": '{\n  "runtimes": {\n    "nvidia": {\n      "path": "/opt/nvidia-container-runtime",\n      "runtimeArgs": ["--debug"]\n    },\n    "crun": {"path": "/usr/bin/crun"}\n  }\n}\n',
    "systemd-cgroup": '{\n  "exec-opts": ["native.cgroupdriver=cgroupfs"],\n  "log-driver": "json-file",\n  "log-opts": {"max-size": "100m", "max-file": "3"},\n  "live-restore": true\n}\n',
    "escapes": '{\n  "labels": ["caf\\u00e9=\\/x", "r\\u00e4ck=\\t4"],\n  "debug": false\n}\n',
    "unicode": '{\n  "labels": ["standort=M\u00fcnchen", "\u7bb1=4"]\n}\n',
    "numbers": '{\n  "mtu": 1500,\n  "shutdown-timeout": 20,\n  "max-concurrent-downloads": 10\n}\n',
    "duplicate-keys": '{\n  "debug": true,\n  "debug": false\n}\n',
    "registries": '{\n  "registry-mirrors": ["https://mirror.example.org"],\n  "insecure-registries": ["10.0.0.0/8"],\n  "default-address-pools": [{"base": "172.80.0.0/16", "size": 24}],\n  "default-ulimits": {"memlock": {"Name": "memlock", "Hard": -1, "Soft": -1}}\n}\n',
}
#: More texts, which some or all versions of docker do not start with; the editor must keep them too.
DOCKER_TEXTS: Mapping[str, str] = {
    "empty": "",
    "blank": "\n",
    "exponent": '{"mtu": 15e2, "x": 1.0, "y": -0}\n',
    "byte-order-mark": '\ufeff{\n  "debug": false\n}\n',
    "default-nvidia": '{"default-runtime": "nvidia", "runtimes": {"nvidia": {"path": "/usr/bin/true", "args": []}}}\n',
    "deep": '{"x": {"runtimes": {"nvidia": 1}}, "y": [[{"runtimes": 2}]]}\n',
}
_TABLE = "[crio.runtime.runtimes"
PACKAGED = (
    '[crio.image]\nsignature_policy = "/etc/crio/policy.json"\n\n[crio.runtime]\ndefault_runtime = "crun"\n\n'
    f'{_TABLE}.crun]\nruntime_path = "/usr/libexec/crio/crun"\nruntime_root = "/run/crun"\n'
    'monitor_path = "/usr/libexec/crio/conmon"\nallowed_annotations = [\n    "io.containers.trace-syscall",\n]\n\n'
    f'{_TABLE}.runc]\nruntime_path = "/usr/libexec/crio/runc"\nruntime_root = "/run/runc"\n'
    'monitor_path = "/usr/libexec/crio/conmon"\n'
)
_D = "crio.conf.d/"
_TEN = f"{_D}10-crio.conf"
#: Name to path below /etc/crio to text.
CRIO: Mapping[str, Mapping[str, str]] = {
    "nothing": {},
    "packaged": {_TEN: PACKAGED},
    "main-file": {"crio.conf": "# site\n[crio.runtime]\npids_limit = 2048\n", _TEN: PACKAGED},
    "main-file-alone": {
        "crio.conf": f'[crio.runtime]\ndefault_runtime = "runc"\n{_TABLE}.runc]\nruntime_path = "{BINARY}"\n'
    },
    "crlf": {_TEN: PACKAGED.replace("\n", "\r\n")},
    "no-last-newline": {_TEN: PACKAGED.rstrip()},
    "comments": {_TEN: PACKAGED, f"{_D}20-site.conf": "# nothing\n  # at all\n"},
    "empty-files": {_TEN: PACKAGED, f"{_D}20-empty.conf": "", f"{_D}README": ""},
    "any-suffix": {_TEN: PACKAGED, f"{_D}50-site.bak": "[crio.runtime]\npids_limit = 99\n"},
    "below-a-folder": {_TEN: PACKAGED, f"{_D}site/a.toml": "[crio.image]\npause_image = 'x'\n"},
    "inline": {
        _TEN: PACKAGED,
        f"{_D}20-inline.conf": f'crio = {{ runtime = {{ runtimes = {{ kata = {{ runtime_type = "vm", runtime_path = "{BINARY}" }} }} }} }}\n',
    },
    "dotted": {_TEN: PACKAGED, f"{_D}20-dotted.conf": "crio.runtime.pids_limit = 77\n"},
    "runc-default": {
        _TEN: PACKAGED,
        f"{_D}20-runc.conf": '[crio.runtime]\ndefault_runtime = "runc"\n',
    },
    "other-runtimes": {
        _TEN: PACKAGED,
        f"{_D}30-kata.conf": f'{_TABLE}.kata]\nruntime_type = "vm"\nruntime_path = "{BINARY}"\nprivileged_without_host_devices = true\n',
    },
    "runtime-replaced": {
        _TEN: PACKAGED,
        f"{_D}40-crun.conf": f'{_TABLE}.crun]\nruntime_path = "/usr/libexec/crio/crun"\nruntime_root = "/run/other"\n',
    },
    "nvidia-ctk-same": {
        _TEN: PACKAGED,
        f"{_D}99-nvidia.toml": (
            f'[crio]\n\n  [crio.runtime]\n\n    {_TABLE}]\n\n      {_TABLE}.nvidia]\n        runtime_path = "{BINARY}"\n'
            '        runtime_type = "oci"\n        runtime_root = "/run/crun"\n        monitor_path = "/usr/libexec/crio/conmon"\n'
            '        allowed_annotations = ["io.containers.trace-syscall"]\n'
        ),
    },
    "nvidia-differs": {
        _TEN: PACKAGED,
        f"{_D}99-nvidia.conf": f'{_TABLE}.nvidia]\nruntime_path = "/opt/old/nvidia-container-runtime"\n',
    },
    "unicode": {
        _TEN: PACKAGED,
        f"{_D}20-\u00e4.conf": '# caf\u00e9\n[crio.image]\npause_command = "\u7bb1"\n',
    },
    "workloads": {
        _TEN: PACKAGED,
        f"{_D}20-workload.conf": '[crio.runtime.workloads.management]\nactivation_annotation = "target.workload.openshift.io/management"\nresources = { "cpushares" = 0, "cpuset" = "0-1" }\n',
    },
    "sorted-after": {_TEN: PACKAGED, f"{_D}zz-site.conf": "[crio.image]\npause_image = 'y'\n"},
}
