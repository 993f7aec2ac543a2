"""Certificates of one cluster: an authority, the API server's own, and one for each client."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = timedelta(days=365)


@dataclass(frozen=True)
class Identity:
    certificate: Path
    key: Path


class Authority:
    """Signs certificates into one folder. Keys are readable by their owner only."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "clotho-embedded-cluster")])
        certificate = (
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = self._write("ca.crt", certificate.public_bytes(serialization.Encoding.PEM))

    def issue_server(self, name: str, hosts: Iterable[str]) -> Identity:
        alternatives = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        return self._issue(name, name, [], ExtendedKeyUsageOID.SERVER_AUTH, alternatives)

    def issue_client(self, file: str, user: str, groups: Iterable[str] = ()) -> Identity:
        """Kubernetes reads the user from the common name and the groups from the organisations."""
        return self._issue(file, user, groups, ExtendedKeyUsageOID.CLIENT_AUTH, None)

    def signing_key(self, file: str) -> Identity:
        """A bare key pair, for the tokens of service accounts."""
        key = ec.generate_private_key(ec.SECP256R1())
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return Identity(self._write(f"{file}.pub", public), self._write_key(file, key))

    def _issue(
        self,
        file: str,
        user: str,
        groups: Iterable[str],
        purpose: x509.ObjectIdentifier,
        alternatives: x509.SubjectAlternativeName | None,
    ) -> Identity:
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject = x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, user)])
        builder = (
            self._builder(subject, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        )
        if alternatives is not None:
            builder = builder.add_extension(alternatives, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        return Identity(self._write(f"{file}.crt", pem), self._write_key(file, key))

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        authority = self._key.public_key()
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))  # for clocks that are a little behind
            .not_valid_after(now + LIFETIME)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority), critical=False)
        )

    def _write_key(self, file: str, key: ec.EllipticCurvePrivateKey) -> Path:
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        return self._write(f"{file}.key", pem)

    def _write(self, file: str, content: bytes) -> Path:
        path = self.folder / file
        path.touch(mode=0o600)
        path.write_bytes(content)
        return path


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        key_encipherment=False,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
