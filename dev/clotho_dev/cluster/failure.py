"""The one error that users see: a sentence with what is wrong and what to do."""


class ClusterError(Exception):
    pass
