"""The site: Sphinx with MyST Markdown, notebooks that are executed, and pages made from the package itself."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]
# Notebooks run in processes of their own. One thread: their networks are small, and other work may share the cores.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The notebooks read nothing but what packages hold, or what they make themselves.
os.environ["HF_HUB_OFFLINE"] = "1"
# Warnings of libraries about the notebook they are in name folders of this machine.
os.environ["PYTHONWARNINGS"] = "ignore"

import greenformers  # noqa: E402

project = "Greenformers"
author = "The Greenformers authors"
project_copyright = "The Greenformers authors, MIT licence"
release = version = greenformers.__version__

extensions = [
    "myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "sphinx_design", "pages", "docstrings",
]  # fmt: skip
exclude_patterns = ["_build", "_ext"]
source_suffix = {".md": "myst-nb"}
suppress_warnings = ["config.cache"]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "cache"
nb_execution_timeout = 1800  # of a cell, on a machine that has other work
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
smartquotes_action = "D"  # dashes alone; options, which begin with two, stand in backticks
python_maximum_signature_line_length = 60
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
html_title = "Greenformers"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
# The pages of other sites are looked at by `make docs-links`, which needs a network.
linkcheck_anchors = False
linkcheck_timeout = 20
