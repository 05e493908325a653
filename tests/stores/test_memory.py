from stores.contract import store_machine
from usechat.stores.memory import MemoryTurnStore


def make() -> tuple[MemoryTurnStore, MemoryTurnStore]:
    store = MemoryTurnStore()
    return store, store


TestMemoryStore = store_machine(make, kept=60).TestCase
