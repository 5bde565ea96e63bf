"""The package that ``import determined`` finds in a rank: hpcdet's face of it.

The folder above is on the module path of ranks and of what they start
(``hpcdet.process.determined_imports``).
A package of this name that is installed, or lies in the code, comes before.
"""

import sys

try:
    from hpcdet.process import determined_imports
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"No module named 'determined': hpcdet would stand in for it, and {sys.executable} cannot "
        f"import hpcdet ({missing}); install hpcdet with that Python's pip",
        name=__name__,
    ) from missing

determined_imports.stand_in()
