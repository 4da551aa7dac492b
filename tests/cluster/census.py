"""Stands in for the driver: counts what Ray has, and writes it where CENSUS says."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import ray

ray.init(log_to_driver=False, logging_level="ERROR")
alive = [node for node in ray.nodes() if node["Alive"]]
census = {
    "arguments": sys.argv[1:],
    "host": socket.gethostname(),
    "addresses": sorted(node["NodeManagerAddress"] for node in alive),
    "hosts": sorted(node["NodeManagerHostname"] for node in alive),
    "slots": {node["NodeManagerHostname"]: node["Resources"].get("CPU", 0) for node in alive},
    "gpus": {node["NodeManagerHostname"]: node["Resources"].get("GPU", 0) for node in alive},
}
Path(os.environ["CENSUS"]).write_text(json.dumps(census))
sys.exit(int(os.environ.get("CENSUS_EXIT", "0")))
