#!/usr/bin/env python3
"""Writes tests/data/kuberay/raycluster.json: KubeRay's definition of a RayCluster (v1), reduced to
the parts that launch/cluster/kuberay.yaml uses. Each object on the way keeps the names of all its
members, and the definitions of those that are used.

    make_kuberay_schema.py helm-chart/kuberay-operator/crds/ray.io_rayclusters.yaml

Made from KubeRay feeaf72f (after v1.7.0-rc.0), PyYAML 6.0.
"""

import json
import pathlib
import sys

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
KEPT = ("type", "required", "x-kubernetes-int-or-string", "pattern", "format", "enum")


def pruned(schema, used):
    """`used`: all values at this place in the manifest."""
    kept = {name: schema[name] for name in KEPT if name in schema}
    if "properties" in schema:
        members = [each for each in used if isinstance(each, dict)]
        kept["properties"] = {
            name: pruned(each, [value[name] for value in members if name in value])
            if any(name in value for value in members)
            else {}
            for name, each in schema["properties"].items()
        }
    if isinstance(schema.get("additionalProperties"), dict):
        kept["additionalProperties"] = pruned(
            schema["additionalProperties"], [each for value in used for each in value.values()]
        )
    if "items" in schema:
        kept["items"] = pruned(schema["items"], [each for value in used for each in value])
    return kept


def main(path):
    definition = yaml.load(pathlib.Path(path).read_text(), yaml.CSafeLoader)
    version = next(each for each in definition["spec"]["versions"] if each["name"] == "v1")
    manifest = yaml.safe_load((ROOT / "launch" / "cluster" / "kuberay.yaml").read_text())
    schema = pruned(version["schema"]["openAPIV3Schema"], [manifest])
    place = ROOT / "tests" / "data" / "kuberay"
    place.mkdir(exist_ok=True)
    (place / "raycluster.json").write_text(json.dumps(schema, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
