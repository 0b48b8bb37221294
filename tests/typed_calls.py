"""Calls that mypy passes, and three with keywords that are not there; no test runs them."""

import streamtron


def listen(event: streamtron.events.Event) -> None: ...


model = streamtron.fit("a", C=1, active_set="1GB", b=5, overwrite=True, listen=listen)
print(model.certificate["relative_duality_gap"], streamtron.Machine(memory="8GB"))
print(streamtron.Settings(active_set="1GB"), streamtron.Settings(active_set=10**9))
streamtron.StreamtronClassifier().fit_shards("a", active_set="1GB")
print(streamtron.certify("m"), streamtron.certify(model, "a", C=1, rho=0, class_weight={1: 2.0}))
print(streamtron.evaluate("m", "a"), streamtron.predict("m", "a"))
print(streamtron.sweep("a", C=[1, 2], rho=0, valid="b", metric="f1", multiclass=True))
print(streamtron.convert("a", "b", to="libsvm", label="y"), streamtron.update("m", "a", tol=1e-3))
streamtron.update("m", "a", tolerance=0.1)  # type: ignore[call-arg]
streamtron.forget("m", "a", keys="id")  # type: ignore[call-arg]
streamtron.evaluate("m", "a", rankings=False)  # type: ignore[call-arg]
