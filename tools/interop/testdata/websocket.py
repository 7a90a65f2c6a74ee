"""Both ends of a WebSocket of Python's websockets, with every kind of frame.

serve CERT KEY           echoes; prints its address
talk HOST ADDRESS CA     speaks to wss://HOST at ADDRESS; prints what worked
"""

import asyncio
import os
import ssl
import sys

import websockets


async def echo(ws, path=None):
    async for msg in ws:
        if msg == "close":
            await ws.close(4001, "as you wish")
        elif msg == "key":
            await ws.send(ws.request_headers.get("Authorization", ""))
        elif msg == "ping me":
            await (await ws.ping(b"from the server"))
            await ws.send("ponged")
        else:
            await ws.send(msg)


async def serve(cert, key):
    ctx = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ctx.load_cert_chain(cert, key)
    async with websockets.serve(echo, "127.0.0.1", 0, ssl=ctx, max_size=1 << 24) as server:
        print("%s:%d" % server.sockets[0].getsockname()[:2], flush=True)
        await asyncio.Future()


async def talk(host, address, ca):
    ip, port = address.rsplit(":", 1)
    ctx = ssl.create_default_context(cafile=ca)
    done = []

    def connect():
        return websockets.connect(
            "wss://%s/echo" % host, ssl=ctx, host=ip, port=int(port), server_hostname=host, max_size=1 << 24, open_timeout=30)

    async with connect() as ws:
        big = os.urandom(1 << 20)
        for name, msg in (("text", "wörter " * 100), ("binary", b"\x00\xff\x01"), ("empty", ""), ("big", big)):
            await ws.send(msg)
            if await ws.recv() == msg:
                done.append(name)
        await ws.send([big[i:i + 1000] for i in range(0, 100000, 1000)])
        if await ws.recv() == big[:100000]:
            done.append("fragments")
        await (await ws.ping(b"from the client"))
        done.append("ping")
        await ws.send("ping me")
        if await ws.recv() == "ponged":
            done.append("pong")
        done.append("deflate=%s" % any("PerMessageDeflate" in type(e).__name__ for e in ws.extensions))
        await ws.send("key")
        key = await ws.recv()
        await ws.send("close")
        try:
            await ws.recv()
        except websockets.ConnectionClosed as e:
            done.append("closed=%d" % e.rcvd.code)
    async with connect() as ws:
        await ws.close(4003, "enough")
        done.append("closing=%d" % ws.close_code)
    done.append("key=" + key)
    print(*done)


asyncio.run(serve(*sys.argv[2:]) if sys.argv[1] == "serve" else talk(*sys.argv[2:]))
