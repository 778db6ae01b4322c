"""The supervisor beside one SGLang server: flags, launch, probe, register, drain."""
