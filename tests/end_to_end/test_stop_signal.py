"""SIGTERM asks a run to stop; Ray's start must not take that away."""

import subprocess
import sys

PROGRAM = """
import os, signal, time
from nemo_brorl.core.clock import StopRequest
from nemo_brorl.cluster.ray_cluster import RayCluster
from nemo_brorl.config.load import load_config
stop = StopRequest(None)
stop.install()
with RayCluster(load_config("brorl_cpu", []).trainer):
    stop.install()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.1)
    print("asked to stop by", stop.reason, flush=True)
"""


def test_sigterm_is_a_request_to_stop_also_after_ray_has_started() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "asked to stop by SIGTERM" in done.stdout
