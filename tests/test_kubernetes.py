"""The manifests of k8s/: each passes the schema of Kubernetes, and keeps what the containers need."""

import re
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

import pyrunner
from tests.servers import PROJECT

FOLDER: Final = PROJECT / "k8s"
KUSTOMIZATION: Final = FOLDER / "kustomization.yaml"
# the kustomization is for kubectl, not for the cluster
FILES: Final = sorted(set(FOLDER.glob("*.yaml")) - {KUSTOMIZATION})


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


def test_one_place_says_where_the_image_is_pulled_from() -> None:
    (found,) = documents(KUSTOMIZATION)
    assert {FOLDER / name for name in found["resources"]} == set(FILES)
    (image,) = found["images"]
    assert {container["image"] for _, container in pods().values()} == {f"{image['name']}:{image['newTag']}"}
    # a registry's address: the bare name is nowhere to be had
    assert "/" in image["newName"]


def test_a_drain_is_not_blocked_while_the_database_is_away() -> None:
    (budget,) = [one for one in documents(FOLDER / "worker.yaml") if one["kind"] == "PodDisruptionBudget"]
    assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_the_scrape_settings_give_the_exporter_the_name_that_the_rules_know() -> None:
    page = (PROJECT / "docs/compose.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    ((scrape),) = yaml.safe_load(block)
    names = re.findall(r'up\{job="(\w+)"\}', (PROJECT / "monitoring/prometheus/alerts.yml").read_text())
    assert names
    assert {scrape["job_name"]} == set(names)
    # it keeps the endpoints of our Service, by name and port
    service = next(one for one in documents(FOLDER / "exporter.yaml") if one["kind"] == "Service")
    (port,) = service["spec"]["ports"]
    (rule,) = [one for one in scrape["relabel_configs"] if one["action"] == "keep"]
    assert rule["regex"] == f"{service['metadata']['name']};{port['name']}"


def test_the_documented_steps_are_kubectls() -> None:
    page = (PROJECT / "docs/compose.md").read_text().partition("## Kubernetes")[2]
    applied = re.findall(r"app\.kubernetes\.io/name in \(([^)]*)\)", page)
    named = [name for words in applied for name in words.split(",")]
    labels = [
        one["metadata"]["labels"]["app.kubernetes.io/name"] for path in FILES for one in documents(path)
    ]
    # in two steps everything, and nothing twice
    assert sorted(named) == sorted(set(labels))
    # the job may take as long as it lets itself
    (job,) = documents(FOLDER / "migrate.yaml")
    assert f"--timeout={job['spec']['activeDeadlineSeconds'] // 60}m" in page


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
