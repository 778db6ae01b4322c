class KVEventsConfig:
    model_fields = {"publisher": None, "endpoint": None, "bind": None}
