import subprocess
import sys


def test_the_client_needs_neither_torch_nor_the_rooms_above_it() -> None:
    code = (
        "import sys, embodied.client, embodied.wire.endpoint;"
        "heavy = {'torch', 'mujoco', 'ray', 'embodied.serving', 'cryptography', 'simplejpeg', 'policies'};"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
