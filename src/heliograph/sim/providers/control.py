"""The control endpoint of a simulator: plain HTTP, on loopback only.

GET     /script               the script, and how often each rule was used
PUT     /script               replace the script (see `script`); requests count from 1 again
DELETE  /script               back to accepting everything
GET     /requests             the received requests, newest last; ?after=SEQ, ?token=, ?accepted=1
DELETE  /requests             clear the record
GET     /devices/TOKEN        the pushes to this device; ?after=SEQ, ?wait=SECONDS for the first
GET     /stats                counts
POST    /goaway  /reset       to all connections, now
"""

from dataclasses import asdict
from json import JSONDecodeError
from typing import TYPE_CHECKING

from aiohttp import web

from heliograph.documents import JsonMapping
from heliograph.runtime.http import refuse_foreign_hosts
from heliograph.sim.providers.script import Script, ScriptError, dump_script, load_script

if TYPE_CHECKING:
    from heliograph.sim.providers.simulator import Simulator

MAX_WAIT = 60.0


class Control:
    def __init__(self, simulator: "Simulator") -> None:
        self._simulator = simulator
        app = web.Application(middlewares=[refuse_foreign_hosts])
        app.add_routes(
            [
                web.get("/script", self._get_script),
                web.put("/script", self._put_script),
                web.delete("/script", self._delete_script),
                web.get("/requests", self._get_requests),
                web.delete("/requests", self._delete_requests),
                web.get("/devices/{token:.+}", self._get_device),
                web.get("/stats", self._get_stats),
                web.post("/goaway", self._goaway),
                web.post("/reset", self._reset),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)

    async def start(self, port: int) -> str:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def close(self) -> None:
        await self._runner.cleanup()

    async def _get_script(self, request: web.Request) -> web.Response:
        return web.json_response(dump_script(self._simulator.script))

    async def _put_script(self, request: web.Request) -> web.Response:
        try:
            script = load_script(await request.json())
        except JSONDecodeError:
            raise web.HTTPBadRequest(text="not JSON\n") from None
        except ScriptError as exc:
            raise web.HTTPBadRequest(text=f"{exc}\n") from None
        self._simulator.set_script(script)
        return await self._get_script(request)

    async def _delete_script(self, request: web.Request) -> web.Response:
        self._simulator.set_script(Script())
        return await self._get_script(request)

    async def _get_requests(self, request: web.Request) -> web.Response:
        query = request.query
        entries = self._simulator.record.select(
            after=int(_number(query, "after")),
            token=query.get("token"),
            accepted=bool(_number(query, "accepted")) if "accepted" in query else None,
        )
        return web.json_response([asdict(entry) for entry in entries])

    async def _delete_requests(self, request: web.Request) -> web.Response:
        self._simulator.record.clear()
        return web.json_response([])

    async def _get_device(self, request: web.Request) -> web.Response:
        entries = await self._simulator.record.wait_for(
            request.match_info["token"],
            int(_number(request.query, "after")),
            min(_number(request.query, "wait"), MAX_WAIT),
        )
        return web.json_response([asdict(entry) for entry in entries])

    async def _get_stats(self, request: web.Request) -> web.Response:
        return web.json_response(dict(self._simulator.stats()))

    async def _goaway(self, request: web.Request) -> web.Response:
        self._simulator.server.go_away()
        return await self._get_stats(request)

    async def _reset(self, request: web.Request) -> web.Response:
        self._simulator.server.reset()
        return await self._get_stats(request)


def _number(query: JsonMapping, name: str) -> float:
    try:
        value = float(query.get(name, "0"))
    except ValueError:
        value = -1.0
    if not 0 <= value < 2**53:
        raise web.HTTPBadRequest(text=f"{name} is a number\n")
    return value
