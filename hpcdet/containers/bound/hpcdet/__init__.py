"""hpcdet inside a container to which only its package was bound, without those beside it.

The folder above is on ``PYTHONPATH`` there. An hpcdet that the image itself has is taken before
the host's; a rank refuses one of another version (``hpcdet.attempt``).
"""

import sys
from importlib.machinery import PathFinder
from pathlib import Path

_above = Path(__file__).resolve().parents[1]
_spec = PathFinder.find_spec("hpcdet", [e for e in sys.path if Path(e).resolve() != _above])
_places = _spec.submodule_search_locations if _spec is not None and _spec.origin else None
__path__ = [*_places] if _places else [str(_above.parents[1])]
__file__ = str(Path(__path__[0], "__init__.py"))
exec(compile(Path(__file__).read_text(encoding="utf-8"), __file__, "exec"))
