"""In the cluster (`web.enabled` of the chart): every request carries the token of the person who looks."""

import asyncio
import os
import signal
import ssl
from pathlib import Path
from typing import Final

from clotho.cluster.credentials import Credentials
from clotho.web.access import TokenAccess
from clotho.web.server import Server, serving

PORT: Final = 8080
AUTHORITY: Final = Path("/etc/clotho/kubernetes/ca.crt")


async def main() -> None:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    server = f"https://{f'[{host}]' if ':' in host else host}:{port}"
    tls = ssl.create_default_context(cafile=os.environ.get("CLOTHO_WEB_CA", str(AUTHORITY)))
    access = TokenAccess(lambda token: Credentials(server=server, tls=tls, read_token=lambda: token))
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with serving(Server(access), "", int(os.environ.get("CLOTHO_WEB_PORT", PORT))):
        await ended.wait()


if __name__ == "__main__":
    asyncio.run(main())
