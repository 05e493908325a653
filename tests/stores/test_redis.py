"""The contract of stores, on a real Redis; tests/stores/quiet_loop.py says how its clock and ours run together."""

from stores.contract import store_machine
from stores.quiet_loop import QuietLoop, let_pass
from support.redis_server import SECRET, RedisServer
from usechat.stores.redis import RedisTurnStore

_LONG = 86_400.0


def test_the_contract_holds_for_two_processes_on_one_redis(redis_server: RedisServer) -> None:
    def make() -> tuple[RedisTurnStore, RedisTurnStore]:
        redis_server.empty()
        store = RedisTurnStore(redis_server.url, secret=SECRET, lease=_LONG, keep=60)
        return store, RedisTurnStore(redis_server.url, secret=SECRET, lease=_LONG, keep=60)

    machine = store_machine(
        make,
        kept=60,
        loop_factory=lambda: QuietLoop(redis_server.port),
        tick=1e-8,
        passed=lambda seconds: let_pass(redis_server, seconds),
        examples=10,
    )
    machine.TestCase().runTest()
