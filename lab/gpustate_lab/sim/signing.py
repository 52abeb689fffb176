"""The keys of the lab: one signs its repositories, another the kernel modules of Ubuntu.

The first is generated once and kept as an armored file. Each use imports it into a temporary keyring, whose path is short
because of gpg-agent's socket, and stops the agent afterwards.
"""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import pkcs7
from cryptography.x509.oid import NameOID

from gpustate_lab.sim.native import run

IDENTITY = "gpustate lab (simulated packages) <lab@gpustate.invalid>"


class SigningKey:
    """Signs with the key in ``directory``, which is generated at the first use.

    Raises:
        LabError: gpg is missing or fails.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._secret = directory / "signing-key.asc"
        if not self._secret.exists():
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _keyring() as gpg:
                run([*gpg, "--quick-gen-key", IDENTITY, "ed25519", "sign", "never"])
                armored = run([*gpg, "--armor", "--export-secret-keys"])
            fresh = self._secret.with_suffix(f".{os.getpid()}")
            fresh.touch(mode=0o600)
            fresh.write_bytes(armored)
            os.replace(fresh, self._secret)

    def public(self) -> bytes:
        with self._loaded() as gpg:
            return run([*gpg, "--armor", "--export"])

    def clearsign(self, text: bytes) -> bytes:
        with self._loaded() as gpg:
            return run([*gpg, "--digest-algo", "SHA512", "--clearsign"], stdin=text)

    def detached(self, text: bytes) -> bytes:
        with self._loaded() as gpg:
            return run([*gpg, "--digest-algo", "SHA512", "--armor", "--detach-sign"], stdin=text)

    @contextlib.contextmanager
    def _loaded(self) -> Iterator[list[str]]:
        with _keyring() as gpg:
            run([*gpg, "--import", str(self._secret)])
            yield gpg


class ModuleSigner:
    """Signs kernel modules as Ubuntu's kernel team, with the key in ``directory``, generated at the first use.

    Sources:
        Linux, scripts/sign-file.c: a detached PKCS#7 signature, a struct module_signature and a mark follow the module.
    """

    _SIGNER = "Canonical Ltd. Kernel Module Signing"
    _MARK = b"~Module signature appended~\n"
    _PKCS7 = 2

    def __init__(self, directory: Path) -> None:
        file = directory / "module-key.pem"
        if not file.exists():
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh = file.with_suffix(f".{os.getpid()}")
            fresh.touch(mode=0o600)
            fresh.write_bytes(self._generate())
            os.replace(fresh, file)
        data = file.read_bytes()
        key = serialization.load_pem_private_key(data, None)
        assert isinstance(key, rsa.RSAPrivateKey)
        self._key = key
        self._certificate = x509.load_pem_x509_certificate(data)

    def _generate(self) -> bytes:
        key = rsa.generate_private_key(65537, 2048)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self._SIGNER)])
        begin, end = datetime(2020, 1, 1, tzinfo=UTC), datetime(2060, 1, 1, tzinfo=UTC)
        made = x509.CertificateBuilder(name, name, key.public_key(), 1, begin, end)
        pem = serialization.Encoding.PEM
        secret = key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return secret + made.sign(key, hashes.SHA512()).public_bytes(pem)

    def sign(self, module: Path) -> Path:
        """Append the signature to a module, and return it."""
        data = module.read_bytes()
        options = pkcs7.PKCS7Options
        signature = (
            pkcs7.PKCS7SignatureBuilder()
            .set_data(data)
            .add_signer(self._certificate, self._key, hashes.SHA512())
            .sign(
                serialization.Encoding.DER,
                [options.DetachedSignature, options.NoAttributes, options.Binary, options.NoCerts],
            )
        )
        about = struct.pack(">BBBBB3xI", 0, 0, self._PKCS7, 0, 0, len(signature))
        module.write_bytes(data + signature + about + self._MARK)
        return module


@contextlib.contextmanager
def _keyring() -> Iterator[list[str]]:
    with tempfile.TemporaryDirectory(prefix="gsl-", dir="/tmp", ignore_cleanup_errors=True) as home:
        try:
            agent = ("--pinentry-mode", "loopback", "--passphrase", "")
            yield ["gpg", "--homedir", home, "--batch", "--yes", *agent]
        finally:
            subprocess.run(
                ["gpgconf", "--homedir", home, "--kill", "all"], capture_output=True, check=False
            )
