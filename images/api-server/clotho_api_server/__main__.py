"""`python -m clotho_api_server`"""

import sys

from clotho_api_server.command import main

sys.exit(main())
