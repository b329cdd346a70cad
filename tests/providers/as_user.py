"""Run checks of the contract in this process and print the outcome of each. A script.

Started by `test_local_as_user` as an ordinary user, with a copy of the package on its path.
"""

import sys

from seer.providers import MachineSpec, get_provider
from seer.testing.provider_contract import ProviderContract


def main() -> None:
    """`argv`: the backend, then the checks."""
    backend, *names = sys.argv[1:]
    spec = MachineSpec(isolation=backend)  # pyright: ignore[reportArgumentType]
    contract = ProviderContract(get_provider("local"), spec=spec, large=8 << 20)
    for name in names:
        try:
            contract.run(name)
            result = "ok"
        except Exception as error:
            result = f"{type(error).__name__}: {error}".replace("\n", " ")
        sys.stdout.write(f"{name} {result}\n")
        sys.stdout.flush()
    contract.close()


if __name__ == "__main__":
    main()
