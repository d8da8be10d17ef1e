"""A web handler that lets one request at a time change an account, whichever host it arrives at.

Needs only the package lockmod: the server is a stand-in for your framework's. Try it:

    LOCKMOD_NODES=redis://127.0.0.1:7001,redis://127.0.0.1:7002,redis://127.0.0.1:7003 python web.py 8080
    curl -X POST localhost:8080/account/17
"""

import asyncio
import os
import sys

from lockmod import HeldError, Locker, LockError, LostError

# One locker for the whole program. A handler that crashes blocks its account for 5 s.
locker = Locker(os.environ["LOCKMOD_NODES"], ttl=5, wait=2, label=f"web-{os.getpid()}")


async def change(account: str, fence: int) -> str:
    """Your work: pass the fence to the database, so that it refuses a late writer."""
    await asyncio.sleep(0.01)
    return f"account {account} changed under fence {fence}"


async def handle(account: str) -> tuple[int, str]:
    """Returns status and text of the response."""
    try:
        async with locker.lock(f"account:{account}") as guard:
            return 200, await change(account, guard.fence)
    except HeldError as error:
        return 409, f"busy: {error}"
    except LostError as error:
        return 503, f"stopped in the middle: {error}"
    except LockError as error:
        return 503, f"no locks at present: {error}"


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers one HTTP/1.0 request."""
    request = (await reader.readline()).decode().split()
    while (await reader.readline()).strip():
        pass  # the other headers
    target = request[1] if len(request) > 1 else ""
    status, text = await handle(target.rsplit("/", 1)[-1])
    writer.write(f"HTTP/1.0 {status} \r\n\r\n{text}\n".encode())
    await writer.drain()
    writer.close()


async def main(port: int) -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", port)
    print("listening on", server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
