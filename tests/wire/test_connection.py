"""A connection is of the process that made it, and times to wait are numbers."""

import math
import os
from pathlib import Path
from typing import Any

import pytest

from embodied.errors import UserError
from embodied.wire.credentials import add_client, create_server
from embodied.wire.endpoint import Requester


def test_a_forked_process_is_told_to_make_its_own(tmp_path: Path) -> None:
    asker = Requester(f"ipc://{tmp_path}/s", timeout_s=0.05)
    with pytest.raises(Exception, match="no answer"):
        asker.request("hello")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            asker.request("hello", timeout_s=5.0)
        except UserError as error:
            asker.close()
            status = 0 if "make a client in each process" in error.line() else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    asker.close()


@pytest.mark.parametrize("wait", [math.nan, math.inf, -math.inf, "soon", [1]])
def test_a_deadline_is_a_finite_number(tmp_path: Path, wait: Any) -> None:
    with pytest.raises(UserError, match="a deadline of"):
        Requester(f"ipc://{tmp_path}/s", timeout_s=wait)
    with pytest.raises(UserError, match="a deadline of"):
        Requester(f"ipc://{tmp_path}/s").submit("hello", timeout_s=wait)


def test_a_servers_folder_is_no_clients(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    create_server(folder)
    with pytest.raises(UserError, match="embodied credentials add"):
        Requester(f"ipc://{tmp_path}/s", credentials=folder)
    carried = add_client(folder, "arm", ["act"])
    with pytest.raises(UserError, match=r"that is a server's folder.*use its clients/NAME \(arm\)"):
        Requester(f"ipc://{tmp_path}/s", credentials=folder)
    Requester(f"ipc://{tmp_path}/s", credentials=carried)
