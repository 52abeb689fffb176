"""The certificate authority of a lab. Keys are ECDSA P-256, which are fast to generate.

Source: kubernetes.io, "PKI certificates and requirements": the common name of a client certificate is the
user, its organizations are the user's groups.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpustate.errors import LabError
from gpustate_lab.paths import write_text

#: Validity: labs may exist for years, and clocks may be wrong by hours.
LIFETIME = timedelta(days=3650)
CLOCK_SKEW = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate and its key, two PEM files."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Authority:
    """The certificate authority in ``directory``, created with the first certificate.

    Args:
        directory: of ``ca.crt``, ``ca.key`` and all signed certificates.
    """

    directory: Path

    @property
    def certificate(self) -> Path:
        return self._own().certificate

    def issue(
        self, name: str, common_name: str, *, groups: Sequence[str] = (), hosts: Sequence[str] = ()
    ) -> Identity:
        """Return an identity by file name; sign it if it does not exist.

        Args:
            name: of the two files, without suffix.
            common_name: the user, for clients.
            groups: the groups of the user.
            hosts: addresses and names, for servers.
        """
        identity = self._files(name)
        if identity.certificate.exists():
            return identity
        own = self._own()
        key = ec.generate_private_key(ec.SECP256R1())
        authority_key = _read_key(own.key)
        authority = x509.load_pem_x509_certificate(own.certificate.read_bytes())
        subject = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject.append(x509.NameAttribute(NameOID.COMMON_NAME, common_name))
        builder = (
            _builder(x509.Name(subject), authority.subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage(
                    [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
                ),
                critical=False,
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
                critical=False,
            )
        )
        if hosts:
            names = x509.SubjectAlternativeName([_host(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        _write(identity, builder.sign(authority_key, hashes.SHA256()), key)
        return identity

    def key_pair(self, name: str) -> tuple[Path, Path]:
        """Return a key pair without a certificate, for signing service account tokens."""
        private, public = self.directory / f"{name}.key", self.directory / f"{name}.pub"
        if not public.exists():
            self.directory.mkdir(parents=True, exist_ok=True)
            key = ec.generate_private_key(ec.SECP256R1())
            write_text(private, _key_text(key), 0o600)
            text = key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
            write_text(public, text.decode())
        return private, public

    def _files(self, name: str) -> Identity:
        return Identity(self.directory / f"{name}.crt", self.directory / f"{name}.key")

    def _own(self) -> Identity:
        identity = self._files("ca")
        if not identity.certificate.exists():
            self.directory.mkdir(parents=True, exist_ok=True)
            key = ec.generate_private_key(ec.SECP256R1())
            name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpustate-lab")])
            builder = (
                _builder(name, name, key.public_key())
                .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
                .add_extension(_usage(signs=True), critical=True)
                .add_extension(
                    x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
                )
            )
            _write(identity, builder.sign(key, hashes.SHA256()), key)
        return identity


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + LIFETIME)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _write(
    identity: Identity, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> None:
    """Write the certificate last: its existence means that the identity is complete."""
    write_text(identity.key, _key_text(key), 0o600)
    write_text(identity.certificate, certificate.public_bytes(serialization.Encoding.PEM).decode())


def _key_text(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    ).decode()


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise LabError(
            "not an ECDSA key", place=str(path), fix="gpustate lab down, then gpustate lab up"
        )
    return key
