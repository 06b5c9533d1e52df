"""The manifests of k8s/: each passes the schema of Kubernetes, and keeps what the containers need."""

from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

import pyrunner
from tests.servers import PROJECT

FOLDER: Final = PROJECT / "k8s"
FILES: Final = sorted(FOLDER.glob("*.yaml"))


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def pods() -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """The pod and its one container, by the name of what makes it."""
    found = {}
    for path in FILES:
        for one in documents(path):
            if template := one.get("spec", {}).get("template"):
                (container,) = template["spec"]["containers"]
                found[one["metadata"]["name"]] = template["spec"], container
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
# the oldest version that still gets fixes, and the newest that is known
@pytest.mark.parametrize("version", ["1.34", str(kubernetes_validate.latest_version())])
def test_manifests_pass_the_schema_of_kubernetes(path: Path, version: str) -> None:
    found = documents(path)
    assert found
    for one in found:
        kubernetes_validate.validate(one, version, strict=True)


def test_the_schema_refuses_what_is_misspelt() -> None:
    (first, *_) = documents(FOLDER / "worker.yaml")
    first["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(first, "1.34", strict=True)


def test_there_are_workers_an_exporter_and_a_migration() -> None:
    assert pods().keys() == {"crm-expiration-worker", "crm-expiration-exporter", "crm-expiration-migrate"}
    (worker, _) = documents(FOLDER / "worker.yaml")
    assert worker["spec"]["replicas"] > 1


def test_no_pod_is_root_or_writes_to_its_root() -> None:
    for name, (pod, container) in pods().items():
        assert pod["securityContext"]["runAsNonRoot"], name
        assert pod["securityContext"]["runAsUser"] == 10001, name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert pod["automountServiceAccountToken"] is False, name
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, name
        assert "USER pyrunner" in (PROJECT / "docker/runner/Dockerfile").read_text()
        assert "--uid 10001" in (PROJECT / "docker/runner/Dockerfile").read_text()


def test_pods_have_time_to_end_limits_and_the_programs_version() -> None:
    for name, (pod, container) in pods().items():
        assert container["image"] == f"crm-expiration-runner:{pyrunner.__version__}", name
        assert container["resources"]["limits"]["memory"], name
        assert pod["terminationGracePeriodSeconds"] >= 30, name
        if "migrate" not in name:
            assert container["readinessProbe"], name


def test_passwords_come_from_secrets_by_files() -> None:
    for name, (pod, container) in pods().items():
        environment = {one["name"]: one for one in container["env"]}
        file = Path(environment["PGPASSWORD_FILE"]["value"])
        (mount,) = [one for one in container["volumeMounts"] if one["mountPath"] == str(file.parent)]
        (volume,) = [one for one in pod["volumes"] if one["name"] == mount["name"]]
        assert volume["secret"]["secretName"].startswith("crm-expiration-"), name
        assert not [one for one in environment if one in ("PGPASSWORD", "PYRUNNER_DSN")], name
