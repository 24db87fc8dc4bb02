"""The files against the schemas of their readers, and against each other."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tomllib

import compose_spec
import kubernetes_validate
import pytest
from examples import DEPLOY, ROOT, Dockerfile, all_examples, compose, kubernetes, seconds, unit

DEFAULTS = tomllib.loads((ROOT / "config" / "voxlane.toml").read_text())
LISTEN, ADMIN = (int(DEFAULTS["server"][key].rsplit(":", 1)[1]) for key in ("listen", "admin"))


def is_within(path: str, folders: list[str]) -> bool:
    return any(pathlib.PurePosixPath(path).is_relative_to(folder) for folder in folders)


def test_kubernetes_takes_each_document_and_no_field_is_unknown() -> None:
    for kind, document in kubernetes().items():
        kubernetes_validate.validate(document, "1.37", strict=True)
        document["spec"]["replicass"] = 1
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(document, "1.37", strict=True)
            pytest.fail(f"the schema of {kind} takes anything")


def test_compose_takes_the_file_and_every_name_in_it_is_defined() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    compose_spec.PyCompose.from_yaml(text).validate()
    for wrong in (text.replace("read_only: true", "read_only: 5"), text.replace("secrets:\n      - voxlane_secret", "secrets:\n      - other")):
        assert wrong != text
        with pytest.raises(Exception):
            compose_spec.PyCompose.from_yaml(wrong).validate()


def test_systemd_takes_the_unit_and_counts_little_exposure(tmp_path: pathlib.Path) -> None:
    assert unit()["ExecStart"] == ["/usr/local/bin/voxlane serve"]
    copy = tmp_path / "voxlane.service"
    text = (DEPLOY / "voxlane.service").read_text()
    # Neither the binary nor kill need be where the unit has them, on the machine that only reads it.
    text = text.replace("/usr/local/bin/voxlane", os.environ["VOXLANE_BINARY"]).replace("/bin/kill", shutil.which("kill"))
    copy.write_text(text)
    verified = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True)
    said = [line for line in verified.stderr.splitlines() if "voxlane.service" in line]
    assert verified.returncode == 0 and not said, verified.stderr
    # In tenths: 2.0 is well within what systemd calls OK.
    subprocess.run(["systemd-analyze", "security", "--offline=true", "--threshold=20", copy], check=True, capture_output=True)


def test_every_example_leaves_a_drain_its_time() -> None:
    drain_s = DEFAULTS["server"]["drain_grace_ms"] / 1000
    for example in all_examples():
        assert example.grace_s >= drain_s + 5, example.name


def test_a_pod_finds_its_ports_probes_secret_and_volumes() -> None:
    documents = kubernetes()
    pod = documents["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    environment = {variable["name"]: variable["value"] for variable in container["env"]}
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": LISTEN, "admin": ADMIN}
    assert environment["VOXLANE_SERVER_LISTEN"] == f"0.0.0.0:{LISTEN}"
    assert environment["VOXLANE_SERVER_ADMIN"] == f"0.0.0.0:{ADMIN}"
    for probe, path in (("startupProbe", "/readyz"), ("readinessProbe", "/readyz"), ("livenessProbe", "/livez")):
        assert container[probe]["httpGet"] == {"path": path, "port": "admin"}
    # The Service sends to the public port alone; the policy lets others than its guard to that one alone.
    assert [port["targetPort"] for port in documents["Service"]["spec"]["ports"]] == ["http"]
    open_to_all = [rule for rule in documents["NetworkPolicy"]["spec"]["ingress"] if "from" not in rule]
    assert [port["port"] for rule in open_to_all for port in rule["ports"]] == ["http"]
    labels = documents["Deployment"]["spec"]["template"]["metadata"]
    assert labels["annotations"]["prometheus.io/port"] == str(ADMIN)
    for selector in (
        documents["Deployment"]["spec"]["selector"]["matchLabels"],
        documents["Service"]["spec"]["selector"],
        documents["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector.items() <= labels["labels"].items()
    # The root is read-only: what is read and written lies on a volume, and the claim exists.
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert is_within(environment["VOXLANE_AUTH_SECRET_FILE"], [path for path, volume in mounts.items() if "secret" in volume])
    assert is_within(environment["VOXLANE_VOICES_FOLDER"], [path for path, volume in mounts.items() if "secret" not in volume])
    claims = [volume["persistentVolumeClaim"]["claimName"] for volume in volumes.values() if "persistentVolumeClaim" in volume]
    assert claims == [documents["PersistentVolumeClaim"]["metadata"]["name"]]
    # A claim of one node has one pod at a time; and the pod's group may read the secret.
    assert documents["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert (documents["Deployment"]["spec"]["replicas"], documents["Deployment"]["spec"]["strategy"]) == (1, {"type": "Recreate"})
    assert volumes["secret"]["secret"]["defaultMode"] == 0o440 and pod["securityContext"]["fsGroup"]


def test_a_composed_service_finds_its_port_secret_and_volume() -> None:
    whole = compose()
    service = whole["services"]["voxlane"]
    environment = service["environment"]
    assert service["ports"] == [f"{LISTEN}:{LISTEN}"] and environment["VOXLANE_SERVER_LISTEN"] == f"0.0.0.0:{LISTEN}"
    assert environment["VOXLANE_AUTH_SECRET_FILE"] == "/run/secrets/" + service["secrets"][0]
    assert (DEPLOY / service["build"]["context"]).resolve() == ROOT
    name, folder = service["volumes"][0].split(":")
    assert name in whole["volumes"] and is_within(environment["VOXLANE_VOICES_FOLDER"], [folder])
    assert service["read_only"] and service["cap_drop"] == ["ALL"]
    # The secret lies in the context of the build, and must not be copied into an image.
    secret = (DEPLOY / whole["secrets"][service["secrets"][0]]["file"]).resolve().relative_to(ROOT)
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert f"/{secret.parts[0]}" in ignored and {"/target", ".git"} <= set(ignored)
    assert f"/{secret.parts[0]}" in (ROOT / ".gitignore").read_text().split()


def test_the_image_holds_what_the_examples_start_and_belongs_to_the_user_they_name() -> None:
    image = Dockerfile()
    build, final = image.all("FROM")
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["rust-version"]
    release = re.fullmatch(r"debian:(\w+)-slim", final)[1]
    assert build == f"rust:{version}-{release} AS build", "one Debian, so one C library, for building and running"
    workdir = image.one("WORKDIR")
    assert image.all("COPY")[1] == f"--from=build {workdir}/target/release/voxlane /usr/local/bin/voxlane"
    binaries = tomllib.loads((ROOT / "gateway" / "Cargo.toml").read_text())["bin"]
    assert "voxlane" in [binary["name"] for binary in binaries]
    assert (json.loads(image.one("ENTRYPOINT")), json.loads(image.one("CMD"))) == (["voxlane"], ["serve"])
    assert image.one("EXPOSE").split() == [str(LISTEN), str(ADMIN)]
    user = image.one("USER")
    pod = kubernetes()["Deployment"]["spec"]["template"]["spec"]["securityContext"]
    assert user == f"{pod['runAsUser']}:{pod['fsGroup']}" and pod["runAsNonRoot"]
    # A named volume takes over the owner of the folder it is mounted on.
    owner, group = user.split(":")
    folder = compose()["services"]["voxlane"]["volumes"][0].split(":")[1]
    assert any(f"install -d -o {owner} -g {group} -m 0750 {folder}" in run for run in image.all("RUN"))
    options, _ = image.healthcheck()
    assert seconds(options["timeout"]) < seconds(options["interval"])
