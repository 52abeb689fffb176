"""modprobe.d as kmod reads it."""

from __future__ import annotations

import pytest

from gpustate.formats import modprobe


def test_every_command_is_read_with_the_kernels_spelling_of_names() -> None:
    config = modprobe.parse(
        "# blacklist not\nblacklist nova-core\n  options nvidia \\\n NVreg_A=1\noptions nvidia NVreg_B=2\n"
        "install snd-pcm /sbin/modprobe x\nalias nouveau off\nalias a b\nsoftdep nvidia post: x\nblacklist\n"
    )
    assert config.blacklist == {"nova_core"}
    assert config.options == {"nvidia": "NVreg_A=1 NVreg_B=2"}
    assert config.install == {"snd_pcm": "/sbin/modprobe x"}
    assert config.off == {"nouveau"}


@pytest.mark.parametrize(
    ("text", "blocked"),
    [
        ("install nouveau /bin/false", True),
        ("install nouveau :", True),
        ("alias nouveau off", True),
        ("blacklist nouveau", False),
        ("install nouveau /sbin/modprobe --ignore-install nouveau", False),
    ],
)
def test_a_blacklist_alone_does_not_keep_a_module_out_by_its_own_name(
    text: str, blocked: bool
) -> None:
    assert modprobe.parse(text).blocks("nouveau") is blocked


def test_files_are_read_by_base_name_and_the_first_install_line_decides() -> None:
    files = {
        "/etc/modprobe.d/b.conf": "install x /bin/false",
        "/usr/lib/modprobe.d/a.conf": "install x /sbin/modprobe y",
    }
    assert modprobe.merge(files).install == {"x": "/sbin/modprobe y"}


def test_a_file_of_etc_hides_one_of_the_same_name_in_usr_lib() -> None:
    files = {
        "/usr/lib/modprobe.d/a.conf": "blacklist x",
        "/etc/modprobe.d/a.conf": "blacklist y",
        "/elsewhere/a.conf": "blacklist z",
    }
    assert modprobe.merge(files).blacklist == {"y"}


def test_options_of_one_module_add_up_over_files() -> None:
    files = {"/etc/modprobe.d/a.conf": "options m a=1", "/etc/modprobe.d/b.conf": "options m b=2"}
    assert modprobe.merge(files).options == {"m": "a=1 b=2"}


def test_option_values_are_split_as_the_kernel_does() -> None:
    assert modprobe.option_values('a=1 b="x y=2" c-d e= a=3') == {
        "a": "3",
        "b": "x y=2",
        "c_d": "1",
        "e": "",
    }


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ((), ""),
        (("/etc/modprobe.d/x.conf:1:install nvidia-uvm /bin/false",), ""),
        (
            ("/etc/modprobe.d/x.conf:3: alias nvidia off",),
            "/etc/modprobe.d/x.conf:3 (alias nvidia off)",
        ),
        (
            (
                "/etc/modprobe.d/x.conf:1:install nvidia /bin/false",
                "/usr/lib/modprobe.d/a.conf:7:install nvidia modprobe -i nvidia-current",
            ),
            "",
        ),
        (("/etc/modprobe.d/x.conf:1:install nvidia /bin/true && modprobe -i nvidia",), ""),
        (("/etc/modprobe.d/x.conf:1:blacklist nvidia",), ""),
    ],
)
def test_the_first_line_in_the_order_of_names_decides_what_is_kept_from_loading(
    rows: tuple[str, ...], said: str
) -> None:
    assert modprobe.blocking(rows, "nvidia") == said


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (("/etc/modprobe.d/zz.conf:2:options nvidia NVreg_A=0",), ("/etc/modprobe.d/zz.conf:2 (options nvidia NVreg_A=0)", "0")),
        (("/etc/modprobe.d/zz.conf:1:options nvidia NVreg_A=0 NVreg_B=7 NVreg_A=2",), ("/etc/modprobe.d/zz.conf:1 (options nvidia NVreg_A=2)", "2")),
        (("/etc/modprobe.d/zz.conf:1:options nvidia NVreg_A=0", "/usr/lib/modprobe.d/n.conf:1:options nvidia NVreg_A=3"),
         ("/etc/modprobe.d/zz.conf:1 (options nvidia NVreg_A=0)", "0")),
        (("/etc/modprobe.d/a.conf:1:options nvidia NVreg_A=0",), None),
        (("/etc/modprobe.d/mine.conf:1:options nvidia NVreg_A=0",), None),
        (("/etc/modprobe.d/zz.conf:1:options nvidia-uvm NVreg_A=0", "/etc/modprobe.d/zz.conf:2:options nvidia NVreg_B=0"), None),
        (("/etc/modprobe.d/zz.conf:1:# options nvidia NVreg_A=0",), None),
    ],
)  # fmt: skip
def test_of_what_is_read_after_a_file_the_last_value_decides(
    rows: tuple[str, ...], found: tuple[str, str] | None
) -> None:
    assert modprobe.given_after(rows, "mine.conf", "nvidia", "NVreg_A") == found
