"""The examples as their readers see them: what each sets, where it writes, how it is stopped."""

import dataclasses
import json
import pathlib
import re

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "config" / "deploy"


@dataclasses.dataclass(frozen=True)
class Example:
    """What one example asks of the server."""

    name: str
    environment: dict[str, str]
    grace_s: float  # from the stop signal to the kill


class Dockerfile:
    """The instructions, in order: (name, rest), continued lines joined."""

    def __init__(self) -> None:
        text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
        lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
        self.instructions = [tuple(line.split(None, 1)) for line in lines]

    def all(self, name: str) -> list[str]:
        return [rest.strip() for found, rest in self.instructions if found == name]

    def one(self, name: str) -> str:
        (only,) = self.all(name)
        return only

    def healthcheck(self) -> tuple[dict[str, str], list[str]]:
        """Its options, and the command."""
        options, command = re.fullmatch(r"((?:--\S+\s+)*)CMD\s+(\[.*\])", self.one("HEALTHCHECK")).groups()
        return dict(option[2:].split("=") for option in options.split()), json.loads(command)


def compose() -> dict:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def kubernetes() -> dict[str, dict]:
    """The documents by kind: one of each."""
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    by_kind = {document["kind"]: document for document in documents}
    assert len(by_kind) == len(documents)
    return by_kind


def unit() -> dict[str, list[str]]:
    """The settings of [Service]: name to values, in order."""
    settings: dict[str, list[str]] = {}
    section = (DEPLOY / "voxlane.service").read_text().split("[Service]")[1].split("[Install]")[0]
    for line in section.splitlines():
        if line and not line.startswith("#"):
            name, value = line.split("=", 1)
            settings.setdefault(name, []).append(value)
    return settings


def of_compose() -> Example:
    service = compose()["services"]["voxlane"]
    return Example("compose", service["environment"], seconds(service["stop_grace_period"]))


def of_kubernetes() -> Example:
    pod = kubernetes()["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    environment = {variable["name"]: variable["value"] for variable in container["env"]}
    before = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    return Example("kubernetes", environment, pod["terminationGracePeriodSeconds"] - before)


def of_systemd() -> Example:
    settings = unit()
    environment = dict(pair.split("=", 1) for pair in settings["Environment"])
    return Example("systemd", environment, float(settings["TimeoutStopSec"][0]))


def all_examples() -> list[Example]:
    return [of_compose(), of_kubernetes(), of_systemd()]


def seconds(duration: str) -> float:
    """`30s`, as Compose and the Dockerfile write it."""
    return float(re.fullmatch(r"(\d+)s", duration)[1])
