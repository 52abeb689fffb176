"""Keys of Fabric Manager's and IMEX's configuration files: ``KEY=value`` lines among comments.

Both daemons silently ignore unknown keys, so a typo would go unnoticed: unknown keys are refused here.

Sources:
    NVIDIA Fabric Manager user guide, config options; fabricmanager.cfg of 580.178.04;
    NVIDIA IMEX guide, configuration; aws/aws-parallelcluster-cookbook, its nvidia-imex configuration;
    NVIDIA/gpu-driver-container (a key is replaced where its line is, else appended).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from gpustate.formats.words import suggest

#: Patterns of values, and what they are.
_FORMS = {
    "number": (r"-?[0-9]{1,10}", "a number"),
    "text": (r"[^\x00-\x1f\x7f]{0,256}", "one line of at most 256 characters"),
}

#: Allowed value by key: ``number``, ``text``, or a list of values.
FABRIC_MANAGER: Mapping[str, str] = {
    "LOG_LEVEL": "0 1 2 3 4",
    "LOG_FILE_NAME": "text",
    "LOG_APPEND_TO_LOG": "0 1",
    "LOG_FILE_MAX_SIZE": "number",
    "LOG_MAX_ROTATE_COUNT": "number",
    "LOG_USE_SYSLOG": "0 1",
    "DAEMONIZE": "0 1",
    "BIND_INTERFACE_IP": "text",
    "STARTING_TCP_PORT": "number",
    "UNIX_SOCKET_PATH": "text",
    "FABRIC_MODE": "0 1 2",
    "FABRIC_MODE_RESTART": "0 1",
    "STATE_FILE_NAME": "text",
    "FM_CMD_BIND_INTERFACE": "text",
    "FM_CMD_PORT_NUMBER": "number",
    "FM_CMD_UNIX_SOCKET_PATH": "text",
    "FM_CMD_VSOCK_CID": "text",
    "FM_CMD_VSOCK_PORT_NUMBER": "number",
    "FM_STAY_RESIDENT_ON_FAILURES": "0 1",
    "ACCESS_LINK_FAILURE_MODE": "number",
    "TRUNK_LINK_FAILURE_MODE": "number",
    "NVSWITCH_FAILURE_MODE": "number",
    "ABORT_CUDA_JOBS_ON_FM_EXIT": "0 1",
    "TOPOLOGY_FILE_PATH": "text",
    "PARTITION_RAIL_POLICY": "greedy symmetric",
    "MNNVL_RESILIENCY_MODE": "number",
    "MNNVL_ENABLE_DEFAULT_PARTITION": "0 1",
    "USE_RPC": "0 1",
    "ENABLE_AUTH_ENCRYPTION": "0 1",
}
IMEX: Mapping[str, str] = {
    "LOG_LEVEL": "0 1 2 3 4",
    "LOG_FILE_NAME": "text",
    "STATS_FILE_NAME": "text",
    "LOG_APPEND_TO_LOG": "0 1",
    "LOG_FILE_MAX_SIZE": "number",
    "LOG_MAX_ROTATE_COUNT": "number",
    "LOG_USE_SYSLOG": "0 1",
    "DAEMONIZE": "0 1",
    "BIND_INTERFACE_IP": "text",
    "SERVER_PORT": "number",
    "NETWORK_INTERFACE": "text",
    "IMEX_WAIT_FOR_QUORUM": "NONE RECOVERY FULL",
    "IMEX_ENABLE_AUTH_ENCRYPTION": "0 1",
    "IMEX_AUTH_ENCRYPTION_MODE": "SSL_TLS GSS_AUTH_ENCRYPT GSS_AUTH_ONLY",
    "IMEX_AUTH_SOURCE": "FILE ENV_PATH ENV_VAL",
    "IMEX_SERVER_KEY": "text",
    "IMEX_SERVER_CERT": "text",
    "IMEX_SERVER_CERT_AUTH": "text",
    "IMEX_CLIENT_KEY": "text",
    "IMEX_CLIENT_CERT": "text",
    "IMEX_CLIENT_CERT_AUTH": "text",
    "IMEX_SECURITY_TARGET_OVERRIDE": "text",
    "IMEX_GSS_SERVICE_NAME": "text",
    "IMEX_GSS_TIMEOUT_SEC": "number",
    "IMEX_GSS_RETRY_INTERVAL_SEC": "number",
    "IMEX_GSS_SEC_CONTEXT_LIFETIME_SEC": "number",
    "IMEX_GSS_SHUTDOWN_ON_FAILURE": "0 1",
    "IMEX_CMD_ENABLED": "0 1",
    "IMEX_CMD_BIND_INTERFACE_IP": "text",
    "IMEX_CMD_PORT": "number",
    "IMEX_CMD_UNIX_DOMAIN_PATH": "text",
    "IMEX_NODE_DISCONNECTED_GRACE_TIME": "number",
}


def validate(
    settings: Mapping[str, str | int | None], kinds: Mapping[str, str]
) -> dict[str, str | None]:
    """Return the keys as written to the file; ``None``: without a line.

    Raises:
        ValueError: an unknown key or an invalid value.
    """
    validated: dict[str, str | None] = {}
    for key, value in settings.items():
        kind = kinds.get(key)
        if kind is None:
            hint = suggest(key.upper(), kinds, f"supported keys: {', '.join(kinds)}")
            raise ValueError(f"unknown key {key[:60]!r}; {hint}")
        text = None if value is None else str(value)
        choices = kind.split()
        of_choices = "|".join(choices), f"one of {', '.join(choices)}"
        pattern, words = _FORMS.get(kind, of_choices)
        if text is not None and not re.fullmatch(pattern, text):
            raise ValueError(f"{key} must be {words}, not {text[:60]!r}")
        validated[key] = text
    return validated


def read(text: str | None, keys: Iterable[str]) -> dict[str, str | None]:
    """Values of some keys; ``None`` for one that is not set. Different values of several lines are joined by line breaks."""
    values: dict[str, dict[str, None]] = {key: {} for key in keys}
    for line in (text or "").split("\n"):
        key, equals, value = line.partition("=")
        if equals and key in values:
            values[key][value.rstrip("\r")] = None
    return {key: "\n".join(v) if v else None for key, v in values.items()}
