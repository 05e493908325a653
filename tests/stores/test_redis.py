"""The contract of stores, on a Redis and a Valkey; tests/stores/quiet_loop.py says how all clocks run together."""

from stores.contract import store_machine
from stores.quiet_loop import QuietLoop, let_pass
from support.redis_server import SECRET, RedisServer
from usechat.stores.redis import RedisTurnStore

_LONG = 86_400.0


def test_the_contract_holds_for_two_processes_on_one_redis(either_server: RedisServer) -> None:
    def make() -> tuple[RedisTurnStore, RedisTurnStore]:
        either_server.empty()
        store = RedisTurnStore(either_server.url, secret=SECRET, lease=_LONG, keep=60)
        return store, RedisTurnStore(either_server.url, secret=SECRET, lease=_LONG, keep=60)

    machine = store_machine(
        make,
        kept=60,
        loop_factory=lambda: QuietLoop(either_server.port),
        tick=1e-8,
        passed=lambda seconds: let_pass(either_server, seconds),
        examples=10,
    )
    machine.TestCase().runTest()
