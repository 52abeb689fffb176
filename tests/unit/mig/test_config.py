"""mig-parted files: upstream's own are read and recreated from the tables; mistakes have a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpustate.errors import PolicyError
from gpustate.mig import builtin, config, tables
from gpustate.mig.config import Entry
from gpustate.mig.layout import ComputeInstance, GpuInstance, GpuLayout, Layout

# Files of NVIDIA/mig-parted, kept beside the repository.
UPSTREAM = Path(__file__).parents[3].parent / "shared/upstream/mig-parted"


def upstream(name: str) -> config.ConfigFile:
    path = UPSTREAM / name
    if not path.exists():
        pytest.skip(f"{path} is not there: upstream's files are kept beside the repository")
    return config.read(path.read_text("utf-8"), str(path))


def said(entry: Entry | None) -> tuple[bool, dict[str, int]] | None:
    return None if entry is None else (entry.enabled, dict(entry.devices))


#: Where the tables know more than upstream's filters: H200 NVL, RTX PRO 6000 in its other editions.
MORE = {("all-1g.35gb", "233b"), ("all-balanced", "2bb1"), ("all-balanced", "2bb4")}


def test_the_built_in_configurations_are_those_of_upstream_for_every_gpu_in_the_tables() -> None:
    theirs, ours = upstream("config-default.yaml"), builtin.config_file()
    assert set(ours.configs) == set(theirs.configs)
    assert len(ours.configs) > 70
    for name, one in theirs.configs.items():
        for device, model in tables.by_device_id().items():
            wanted, made = one.entry_for(0, device), ours.configs[name].entry_for(0, device)
            if (name, device) in MORE:
                assert wanted is None
                assert made is not None
                assert all(model.geometry.get(profile) for profile in made.devices)
            else:
                assert said(made) == said(wanted), (name, model.name, device)


def test_every_gpu_that_upstream_filters_for_is_in_the_tables() -> None:
    filters = {
        one.device
        for each in upstream("config-default.yaml").configs.values()
        for entry in each.entries
        for one in entry.filters
    }
    assert len(filters) > 25
    assert filters <= set(tables.by_device_id())


def test_the_example_of_upstream_is_read_with_its_lists_of_gpus() -> None:
    one = upstream("example-config.yaml").config("custom-config")
    assert said(one.entry_for(3, "20b0")) == (False, {})
    assert said(one.entry_for(5, "20b0")) == (True, {"2g.10gb": 3})
    assert one.entry_for(8, "20b0") is None


def test_what_is_written_is_read_back_the_same() -> None:
    ours = builtin.config_file()
    again = config.read(builtin.as_yaml(ours.configs.values()), "again.yaml")
    assert list(again.configs) == list(ours.configs)
    for name, one in ours.configs.items():
        for device in tables.by_device_id():
            mine, read = one.entry_for(0, device), again.configs[name].entry_for(0, device)
            assert said(read) == said(mine)


def test_an_exported_layout_is_a_file_that_means_it() -> None:
    def gpu(index: int, *profiles: str, on: bool = True) -> GpuLayout:
        instances = tuple(
            GpuInstance(
                id=n, profile=p, start=4 * n, compute=(ComputeInstance(id=0, slices=3 - n),)
            )
            for n, p in enumerate(profiles)
        )
        return GpuLayout(index=index, device_id="20b0", enabled=on, instances=instances)

    layout = Layout(gpus=(gpu(0, "3g.20gb", "3g.20gb"), gpu(1, on=False), gpu(2, on=False)))
    text = builtin.as_yaml([builtin.export(layout, "as: it is")])
    one = config.read(text, "made.yaml").config("as: it is")
    assert said(one.entry_for(0, "20b0")) == (True, {"2c.3g.20gb": 1, "3g.20gb": 1})
    assert said(one.entry_for(1, "20b0")) == said(one.entry_for(2, "20b0")) == (False, {})
    assert len(one.entries) == 2
    alike = builtin.export(Layout(gpus=(gpu(0, on=False), gpu(1, on=False))), "off")
    assert alike.entries[0].indices is None


def test_the_last_entry_that_matches_a_gpu_decides() -> None:
    text = """\
version: v1
mig-configs:
  mixed:
    - {devices: all, mig-enabled: true, mig-devices: {1g.5gb: 7}}
    - {device-filter: "0x20B210DE", devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}}
    - {device-filter: ["0x20B210DE:0x146310DE"], devices: [1], mig-enabled: false}
"""
    one = config.read(text, "f.yaml").config()
    assert said(one.entry_for(0, "20b0")) == (True, {"1g.5gb": 7})
    assert said(one.entry_for(1, "20b2")) == (True, {"1g.10gb": 7})
    assert said(one.entry_for(1, "20b2", "146310de")) == (False, {})


def test_two_spellings_of_a_whole_compute_instance_are_one() -> None:
    text = entry("devices: all, mig-enabled: true, mig-devices: {7c.7g.40gb: 1}")
    assert said(config.read(text, "f").config().entry_for(0, "20b0")) == (True, {"7g.40gb": 1})


def entry(inside: str) -> str:
    return f"version: v1\nmig-configs:\n  one:\n    - {{{inside}}}\n"


ON = "devices: all, mig-enabled: true, mig-devices:"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", "", "is empty, wanted version and mig-configs"),
        ("- 1\n", ":1", "the file is a list, wanted a mapping"),
        ("mig-configs: {}\n", ":1", "lacks version; add version: v1"),
        ("version: v2\nmig-configs: {}\n", ":1", "version 'v2' is unsupported, wanted v1"),
        ("version: v1\nmig-config: {}\n", ":2", "unknown key 'mig-config'; did you mean mig-conf"),
        ("version: v1\nmig-configs: {}\n", ":2", "needs at least one configuration"),
        ("version: v1\nmig-configs:\n  a: []\n", ":3", "a needs a list of at least one entry"),
        ("version: v1\nversion: v1\n", ":2", "'version' is a duplicate of line 1"),
        ("version: v1\n\tmig-configs: 1\n", ":2", "a tab"),
        (entry("mig-enabled: false"), ":4", "the entry lacks devices"),
        (entry("devices: all"), ":4", "the entry lacks mig-enabled"),
        (entry("devices: all, mig-enabled: maybe"), ":4", "mig-enabled is a string"),
        (entry("devices: some, mig-enabled: false"), ":4", "devices is 'some', wanted all"),
        (entry("devices: [-1], mig-enabled: false"), ":4", "'-1' is not a GPU number"),
        (entry("devices: [true], mig-enabled: false"), ":4", "is not a GPU number"),
        (entry("devices: all, mig-enable: true"), ":4", "'mig-enable'; did you mean mig-enabled"),
        (entry("devices: all, mig-enabled: true"), ":4", "for no devices write mig-devices: {}"),
        (
            entry("devices: all, mig-enabled: false, mig-devices: {1g.5gb: 1}"),
            ":4",
            "mig-devices and mig-enabled: false are mutually exclusive",
        ),
        (entry(ON + " [1g.5gb]"), ":4", "mig-devices is a list"),
        (entry(ON + " {1g.5gb: 0}"), ":4", "every count in mig-devices is 0"),
        (entry(ON + " {1g.5gb: -1}"), ":4", "'-1' is not a count"),
        (entry(ON + " {1g.5gb: 1.5}"), ":4", "'1.5' is not a count"),
        (entry(ON + " {1g.5gb: yes}"), ":4", "is not a count"),
        (entry(ON + " {1g.5gb: 1000000000}"), ":4", "is not a count"),
        (entry(ON + " {1g: 1}"), ":4", "'1g': wanted a MIG profile such as"),
        (entry(ON + " {1g.5gb.me: 1}"), ":4", "did you mean 1g.5gb+me"),
        (entry(ON + " {1G.5GB: 1}"), ":4", "did you mean 1g.5gb"),
        (entry(ON + " {4c.3g.20gb: 1}"), ":4", "4 compute slices do not fit into 3"),
        (entry(ON + " {1g.5gb+me-gfx: 1}"), ":4", "wanted a MIG profile"),
        (entry(ON + " {'1g.5gb+': 1}"), ":4", "'' is not an attribute"),
        (entry(ON + " {1g.5gb: 1, 1c.1g.5gb: 1}"), ":4", "is a duplicate of a profile above"),
        (entry("device-filter: 0x20B010DE, " + ON + " {}"), ":4", 'put it in quotes: "0x'),
        (entry("device-filter: '20B0', " + ON + " {}"), ":4", "wanted 0x, PCI device id"),
        (entry("device-filter: '0x20B010DE:', " + ON + " {}"), ":4", "wanted 0x, PCI device id"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(text: str, line: str, said: str) -> None:
    with pytest.raises(PolicyError) as caught:
        config.read(text, "mig.yaml")
    assert str(caught.value).startswith(f"mig.yaml{line}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_that_is_not_there_gets_a_suggestion() -> None:
    file = builtin.config_file()
    with pytest.raises(PolicyError, match=r"'all-balance'; did you mean all-balanced"):
        file.config("all-balance")
    with pytest.raises(PolicyError, match=r"has \d+ configurations; select one of all-"):
        file.config()
    assert config.read(entry("devices: all, mig-enabled: no"), "f").config().name == "one"


def test_aliases_that_stand_for_billions_are_refused() -> None:
    lines = ["version: v1", "mig-configs:", "  a0: &a0 [{devices: all, mig-enabled: no}]"]
    lines += [f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    with pytest.raises(PolicyError, match=r"expand to more than|nested deeper"):
        config.read("\n".join(lines), "bomb.yaml")
