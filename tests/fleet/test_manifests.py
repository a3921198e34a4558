"""launch/cluster: the manifests for Kubernetes and Slurm."""

import json
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SLURM = ROOT / "launch" / "cluster" / "slurm.sh"
SCHEMA = json.loads((ROOT / "tests" / "data" / "kuberay" / "raycluster.json").read_text())
TYPES = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool}
# Options in sbatch's and srun's manual pages (Slurm 25.05) that the scripts may use.
SLURM_OPTIONS = {
    "job-name",
    "nodes",
    "ntasks-per-node",
    "cpus-per-task",
    "mem",
    "exclusive",
    "time",
    "signal",
    "partition",
    "account",
    "gres",
    "gpus-per-node",
    "output",
    "constraint",
    "qos",
    "nodelist",
    "ntasks",
    "overlap",
}


def problems(value, schema, path=""):
    """The places where a value differs from KubeRay's definition."""
    if schema.get("x-kubernetes-int-or-string"):
        ok = isinstance(value, int) or re.search(schema.get("pattern", ""), str(value))
        return [] if ok else [f"{path}: {value!r}"]
    kind = schema.get("type")
    if kind and (not isinstance(value, TYPES[kind]) or (kind != "boolean" and isinstance(value, bool))):
        return [f"{path}: {value!r} is no {kind}"]
    found = [f"{path}: no {name}" for name in schema.get("required", []) if name not in value]
    if kind == "object" and "properties" in schema:
        for name, each in value.items():
            if name in schema["properties"]:
                found += problems(each, schema["properties"][name], f"{path}.{name}")
            elif "additionalProperties" not in schema:
                found.append(f"{path}: nobody knows {name}")
    elif kind == "object" and "additionalProperties" in schema:
        for name, each in value.items():
            found += problems(each, schema["additionalProperties"], f"{path}.{name}")
    elif kind == "array":
        for i, each in enumerate(value):
            found += problems(each, schema["items"], f"{path}[{i}]")
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{path}: {value!r} is none of {schema['enum']}")
    return found


@pytest.fixture
def manifest():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed (Debian: python3-yaml)")
    return yaml.safe_load((ROOT / "launch" / "cluster" / "kuberay.yaml").read_text())


def test_kuberays_definition_takes_the_manifest(manifest):
    assert not problems(manifest, SCHEMA)
    assert manifest["apiVersion"] == "ray.io/v1" and manifest["kind"] == "RayCluster"


@pytest.mark.parametrize(
    "spoil, told",
    [
        (lambda spec: spec.update(headGroupSpecs={}), "nobody knows headGroupSpecs"),
        (lambda spec: spec.pop("headGroupSpec"), "no headGroupSpec"),
        (lambda spec: spec["workerGroupSpecs"][0].update(replicas="four"), "is no integer"),
        (lambda spec: spec["headGroupSpec"]["rayStartParams"].update({"num-cpus": 0}), "is no string"),
        (lambda spec: spec["workerGroupSpecs"][0]["template"]["spec"]["containers"][0].pop("name"), "no name"),
    ],
)
def test_a_manifest_that_kuberay_would_refuse_is_seen(manifest, spoil, told):
    spoil(manifest["spec"])
    assert any(told in each for each in problems(manifest, SCHEMA))


def test_each_volume_that_is_mounted_is_there(manifest):
    groups = [manifest["spec"]["headGroupSpec"], *manifest["spec"]["workerGroupSpecs"]]
    for group in groups:
        spec = group["template"]["spec"]
        mounted = {mount["name"] for container in spec["containers"] for mount in container.get("volumeMounts", [])}
        assert mounted == {volume["name"] for volume in spec["volumes"]}


def test_slurms_script_is_bash_and_asks_for_options_that_there_are():
    assert subprocess.run(["bash", "-n", SLURM]).returncode == 0
    text = SLURM.read_text()
    header = re.findall(r"^#SBATCH --([\w-]+)", text, re.MULTILINE)
    assert header and set(header) <= SLURM_OPTIONS
    for call in re.findall(r"srun (.*)", text):
        asked = re.findall(r"--([\w-]+)", re.split(r"\b(?:ray|hostname|pitstop-fleet)\b|\"\$\{@", call)[0])
        assert set(asked) <= SLURM_OPTIONS, call


def test_the_fleet_command_takes_what_slurm_gives_it(ray_python):
    call = next(line for line in SLURM.read_text().splitlines() if line.strip().startswith("pitstop-fleet"))
    flags = set(re.findall(r"--[\w-]+", call))
    told = subprocess.run(
        [ray_python, "-m", "pitstop.fleet.command", "--help"],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT / "client" / "python")},
        check=True,
    ).stdout
    assert flags and flags <= set(re.findall(r"--[\w-]+", told))
